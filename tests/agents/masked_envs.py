"""Environments that allow some of their actions, and refuse the others with an error."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rltransformers.core.action_masks import check_recorded, choices_of


class Locks(gym.Env[Any, Any]):
    """Random observations and random masks, both seeded; episodes of 5, 3 and 7 steps, reward the sum of the action.

    Args:
        observed: whether the mask is a part of the observation instead of a method.
        truncates: ends episodes by a limit instead of termination.
        nothing_at: step of the first episode at which nothing is allowed.
    """

    def __init__(
        self,
        action_space: gym.Space[Any] | None = None,
        observed: bool = False,
        truncates: bool = False,
        nothing_at: int | None = None,
    ) -> None:
        self.action_space = spaces.Discrete(4, start=3) if action_space is None else action_space
        inner: gym.Space[Any] = spaces.Box(-np.inf, np.inf, (3,))
        self.sizes = choices_of(self.action_space)
        mask = spaces.Box(0, 1, (sum(self.sizes),), np.int8)
        self.observed, self.truncates, self.nothing_at = observed, truncates, nothing_at
        self.observation_space = spaces.Dict({"action_mask": mask, "place": inner}) if observed else inner
        if not observed:
            self.action_masks = lambda: self.mask.astype(bool)
        self.episode, self.t = -1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        check_recorded({"": np.asarray(action)[None]}, self.mask[None], self.action_space)
        self.t += 1
        ends = self.t == (5, 3, 7)[self.episode % 3]
        reward = float(np.sum(action)) / 10
        return self._observe(), reward, ends and not self.truncates, ends and self.truncates, {}

    def _observe(self) -> Any:
        parts = []
        for size in self.sizes:
            part = self.np_random.random(size) < 0.4
            part[self.np_random.integers(size)] = True
            parts.append(part)
        self.mask = np.concatenate(parts).astype(np.int8)
        if self.episode == 0 and self.t == self.nothing_at:
            self.mask[:] = 0
        place = self.np_random.normal(size=3).astype(np.float32)
        return {"place": place, "action_mask": self.mask.copy()} if self.observed else place


class Keyholes(gym.Env[Any, Any]):
    """Two of six actions are allowed in every step, unseen; the lower one earns 1, one that is not allowed ends it all.

    Eight steps: at random an allowed action earns 4 in the mean, the lower one always 8. Whoever does not know the mask
    falls within two steps, whatever it learns.
    """

    def __init__(self, masks: bool = True) -> None:
        self.observation_space, self.action_space = spaces.Box(-1, 1, (1,)), spaces.Discrete(6)
        if masks:
            self.action_masks = lambda: np.isin(np.arange(6), self.pair)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        allowed, best = action in self.pair, action == min(self.pair)
        self.t += 1
        return self._observe(), float(best), not allowed or self.t == 8, False, {}

    def _observe(self) -> Any:
        self.pair = self.np_random.choice(6, size=2, replace=False)
        return np.zeros(1, np.float32)
