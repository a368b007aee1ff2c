"""Small deterministic environments whose values, lengths and returns are known."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Walk(gym.Env[Any, Any]):
    """Observes [sine of the step, tanh of the summed actions, seeded noise]; episode lengths cycle through ``lengths``,
    reward is the action.

    ``truncates`` ends episodes by a limit instead of termination. Only the noise is random.
    """

    def __init__(self, lengths: tuple[int, ...] = (5, 3, 7), truncates: bool = False, bound: float = 100.0) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,))
        self.action_space = spaces.Box(-bound, bound, (1,))
        self.lengths, self.truncates = lengths, truncates
        self.episode = -1
        self.t, self.total = 0, 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode += 1
        self.t, self.total = 0, 0.0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.total += float(action[0])
        ends = self.t == self.lengths[self.episode % len(self.lengths)]
        reward = float(action[0])
        return self._observe(), reward, ends and not self.truncates, ends and self.truncates, {}

    def _observe(self) -> np.ndarray:
        return np.array([np.sin(self.t), np.tanh(self.total / 5), self.np_random.normal()], np.float32)


class Stroll(Walk):
    """A ``Walk`` with three actions, 5 to 7, whose rewards are -1, 0 and 1."""

    def __init__(self, lengths: tuple[int, ...] = (5, 3, 7), truncates: bool = False) -> None:
        super().__init__(lengths, truncates)
        self.action_space = spaces.Discrete(3, start=5)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        return super().step([float(action) - 6.0])


class Ramble(Stroll):
    """A ``Stroll`` whose episodes have random lengths."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        result = super().reset(seed=seed)
        self.lengths = (int(self.np_random.integers(2, 8)),)
        return result


class Steady(gym.Env[Any, Any]):
    """Reward 1 for ever and one constant observation: with discount g every state is worth 1 / (1 - g).

    ``truncates``: cut by a limit after ``length`` steps; else the same steps end in a true termination.
    """

    def __init__(self, length: int = 10, truncates: bool = True) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,))
        self.action_space = spaces.Discrete(2)
        self.length, self.truncates = length, truncates
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return np.ones(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        ends = self.t >= self.length
        return np.ones(2, np.float32), 1.0, ends and not self.truncates, ends and self.truncates, {}


class AnySpace(gym.Env[Any, Any]):
    """Random observations of any space, any action space, episodes of four steps; checks the actions it gets."""

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.t += 1
        return self.observation_space.sample(), float(self.t), self.t == 4, False, {}


class Poisoned(gym.Env[Any, Any]):
    """Turns NaN in the observation or the reward at one step of its life."""

    def __init__(self, at: int | None = None, reward: bool = False) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,))
        self.action_space = spaces.Discrete(2)
        self.at, self.reward = at, reward
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        bad = self.t == self.at
        observation = np.array([0.5, np.nan if bad and not self.reward else 0.1], np.float32)
        return observation, float("nan") if bad and self.reward else 1.0, False, False, {}


class PixelCue(gym.Env[Any, Any]):
    """An 84x84 or smaller picture whose brightness says which action earns 1."""

    def __init__(self, shape: tuple[int, int, int] = (84, 84, 3)) -> None:
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.action_space = spaces.Discrete(2)
        self.black = np.zeros(shape, np.uint8)
        self.t = self.cue = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._picture(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.cue)
        self.t += 1
        return self._picture(), reward, self.t == 4, False, {}

    def _picture(self) -> np.ndarray:
        self.cue = int(self.np_random.integers(2))
        return np.full_like(self.black, 255 * self.cue)
