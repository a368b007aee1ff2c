"""An environment for the checks of learners: random observations, and time limits that cut its episodes."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

OBSERVATION, ACTIONS = 3, 3
"""Numbers of an observation, and actions to choose from."""


class Limited(gym.Env[np.ndarray, np.int64]):
    """Observes normal noise that follows from the seed; every episode is cut by a limit after ``length`` steps.

    Rewards are the number of the action.
    """

    def __init__(self, length: int) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (OBSERVATION,), np.float32)
        self.action_space = spaces.Discrete(ACTIONS)
        self.length, self.t = length, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self._observe(), float(action), False, self.t == self.length, {}

    def _observe(self) -> np.ndarray:
        return self.np_random.normal(size=OBSERVATION).astype(np.float32)
