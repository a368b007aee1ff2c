"""Behaviors of the recorded datasets, for `--behavior rltransformers.zoo.behaviors:NAME`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def cartpole_weak(observations: Any, episode_starts: NDArray[np.bool_], generator: np.random.Generator) -> Any:
    """CartPole-v1: mean return about 110."""
    return _balance(observations, 0.5, generator)


def cartpole_good(observations: Any, episode_starts: NDArray[np.bool_], generator: np.random.Generator) -> Any:
    """CartPole-v1: mean return about 450."""
    return _balance(observations, 0.3, generator)


def _balance(observations: Any, noise: float, generator: np.random.Generator) -> Any:
    """A linear controller that would balance for ever, with a share ``noise`` of uniformly random actions."""
    right = observations @ np.array([0.1, 0.2, 1.0, 0.5]) > 0
    random = generator.integers(0, 2, len(right))
    return np.where(generator.random(len(right)) < noise, random, right).astype(np.int64)
