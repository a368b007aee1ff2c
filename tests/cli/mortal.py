"""An environment that kills the process it lives in, once."""

import os
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Mortal(gym.Env[Any, Any]):
    """Observes noise and what the last action was; the reward is 1 for actions that go with the sign of the noise.

    Everything follows from the seed of a reset.

    Args:
        grave: file that is made when process 1 dies; nobody dies while there is one.
        at: step of this copy in which it happens.
    """

    def __init__(self, grave: str, at: int) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,))
        self.action_space = spaces.Discrete(2)
        self.grave, self.at, self.steps = Path(grave), at, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.noise, self.left = self.np_random.normal(), int(self.np_random.integers(2, 7))
        return np.array([self.noise, 0.0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps, self.left = self.steps + 1, self.left - 1
        if os.environ.get("RANK") == "1" and self.steps == self.at and not self.grave.exists():
            self.grave.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        reward = float((self.noise > 0) == bool(action))
        self.noise = self.np_random.normal()
        return np.array([self.noise, float(action)], np.float32), reward, self.left == 0, False, {}


gym.register("test/Mortal-v0", entry_point=lambda **options: Mortal(**options))
