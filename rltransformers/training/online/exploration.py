"""How often actions are random while an agent explores. Axis: E environments."""

from typing import Any, Literal

import numpy as np

from rltransformers.core.errors import ConfigError
from rltransformers.training.schedules import Scheduled, as_schedule

LADDER = "ladder"
Exploration = Literal["ladder"] | Scheduled
"""Rates of environments that differ by powers, or one rate of all of them that may change over the run."""
BASE, STEEPNESS = 0.4, 7.0


def exploration_rates(exploration: Any, progress: float, n_envs: int) -> np.ndarray:
    """The share of random actions of every environment [E] at a remaining progress (1 to 0).

    The ladder is that of Ape-X (Horgan et al. 2018, arXiv 1803.00933, section 4.1): environment i explores with
    0.4^(1 + 7 i / (E - 1)), from 0.4 down to 0.00066; an only environment stands in its middle, 0.016.
    """
    if exploration == LADDER:
        rung = np.linspace(0.0, 1.0, n_envs) if n_envs > 1 else np.full(1, 0.5)
        return BASE ** (1.0 + STEEPNESS * rung)
    return np.full(n_envs, as_schedule(exploration, "exploration")(progress))


def check_exploration(exploration: Any) -> None:
    """Raise ConfigError unless rates are probabilities at both ends of a run."""
    if exploration == LADDER:
        return
    schedule = as_schedule(exploration, "exploration")
    for progress in (1.0, 0.0):
        if not 0.0 <= (rate := float(schedule(progress))) <= 1.0:
            raise ConfigError(
                f"exploration is a probability, got {rate} at progress {progress}; give numbers from 0 to 1, or "
                f"{LADDER!r} for a rate of every environment"
            )
