"""Steps and episodes of a running rollout, counted for all processes as one process would count them."""

from itertools import chain
from typing import Any

import numpy as np

from rltransformers.core.world import Sharing

Ended = tuple[dict[str, Any], bool]
"""Info of an episode, and whether the episode ended."""


class RolloutCounts:
    """Steps of this process in the running rollout, and, of several processes, its episodes by step.

    Attributes:
        steps: of all environments of this process.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._ended: list[list[Ended]] = []

    def add(self, infos: list[dict[str, Any]], dones: np.ndarray | None) -> None:
        """Remember the episodes of a step until ``share``."""
        ended = np.zeros(len(infos), bool) if dones is None else dones
        endings: list[dict[str, Any]] = [
            {name: info[name] for name in ("episode", "is_success") if name in info} for info in infos
        ]
        self._ended.append([(info, bool(end)) for info, end in zip(endings, ended, strict=True) if info or end])

    def share(self, sharing: Sharing, going_on: bool) -> tuple[int, list[Ended], bool]:
        """Steps and episodes of all processes in the order of one, and whether all are ``going_on``; forget them."""
        parts = sharing.all_gather_object((self.steps, self._ended, going_on))
        self.steps, self._ended = 0, []
        by_step = zip(*(ended for _, ended, _ in parts), strict=True)
        episodes = [episode for step in by_step for episode in chain(*step)]
        return sum(steps for steps, _, _ in parts), episodes, all(going for _, _, going in parts)
