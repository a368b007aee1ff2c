"""Metrics that were recorded and not written yet, carried over a checkpoint, so that no line of the log has a gap."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.logger import Logger

from rltransformers.core.errors import CheckpointError
from rltransformers.core.ranges import WholeNumber, check, shown

STORABLE = (bool, int, float, str, np.generic)
"""Values of a logger that a checkpoint can hold."""


class UnwrittenMetrics:
    """Metrics of a checkpoint for the next line of the log: {name: (value, count, excluded)}."""

    def __init__(self, stored: Mapping[str, Any] | None = None) -> None:
        """``stored``: what ``to_store`` gave.

        Raises:
            CheckpointError: for what is no number and no text.
            ConfigError: for what is no such mapping.
        """
        checked = check(stored or {}, dict[str, tuple[Any, WholeNumber, Sequence[str]]], "metrics")
        for name, (value, *_) in checked.items():
            if not isinstance(value, STORABLE):
                raise CheckpointError(f"metrics.{name} must be a number or a text, got {shown(value)}")
        self._waiting: dict[str, Any] = checked

    def to_store(self, logger: Logger | None) -> dict[str, Any]:
        """Metrics that still wait, or that the logger will write next."""
        if self._waiting or logger is None:
            return self._waiting
        return {
            name: (value, logger.name_to_count.get(name, 0), logger.name_to_excluded[name])
            for name, value in logger.name_to_value.items()
            if isinstance(value, STORABLE)
        }

    def hand_to(self, logger: Logger) -> None:
        """Let the logger write what waits."""
        for name, (value, count, excluded) in self._waiting.items():
            logger.record(name, value, exclude=tuple(excluded))
            logger.name_to_count[name] = count
        self._waiting = {}
