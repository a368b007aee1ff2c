"""Named behaviors that tests load by "module:name"."""

from typing import Any

import numpy as np


def zeros(observations: Any, episode_starts: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Action 0 everywhere."""
    return np.zeros(len(episode_starts), np.int64)


class Constant:
    """An object made from the two spaces."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.action = action_space.n - 1

    def act(self, observations: Any, episode_starts: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """The largest action everywhere."""
        return np.full(len(episode_starts), self.action)


def of_observations(observations: Any) -> np.ndarray:
    """A function that cannot act: it takes one argument."""
    return np.zeros(len(observations), np.int64)


class WithoutSpaces:
    """A class that cannot be made from the two spaces."""

    act = Constant.act


not_a_behavior = 3
