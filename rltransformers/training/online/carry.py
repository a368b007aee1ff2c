"""What an online agent carries through a run: memory and steps from update to update, counts of a rollout."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np

from rltransformers.core.world import Sharing
from rltransformers.data.rollout import Segment
from rltransformers.policies.policy_state import PolicyState

MemoryRefresh = Literal["never", "update", "epoch"]
"""Ways to treat memory written by older weights; the agents say what each does."""


@dataclass
class Carry:
    """Memory and steps that an online agent carries from one update to the next."""

    acting: PolicyState  # state of the policy that acts, in every environment
    segment: Segment | None = None  # the newest whole rollout; None while one is collected, and with a replay
    before: Segment | None = None  # the rollout in front of ``segment``, where ``memory_refresh="epoch"`` needs it
    own_memory: PolicyState | None = None  # of V-MPO's learner where the next rollout begins; None: that of ``acting``
    target_age: int = 0  # gradient steps of V-MPO's learner since the target was renewed
    rollout_from: int | None = None  # steps of the run before a rollout that no update has learned from; None without


class RolloutCounts:
    """Steps of this process in the running rollout, and, of several processes, its episodes by step.

    They are counted for all processes as one process would count them.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._ended: list[list[tuple[dict[str, Any], bool]]] = []  # infos by step, and whether an episode ended

    def add(self, infos: list[dict[str, Any]], dones: np.ndarray | None) -> None:
        """Remember the episodes of a step until ``share``."""
        ended = np.zeros(len(infos), bool) if dones is None else dones
        endings: list[dict[str, Any]] = [
            {name: info[name] for name in ("episode", "is_success") if name in info} for info in infos
        ]
        self._ended.append([(info, bool(end)) for info, end in zip(endings, ended, strict=True) if info or end])

    def share(self, sharing: Sharing, going_on: bool) -> tuple[int, list[tuple[dict[str, Any], bool]], bool]:
        """Steps and episodes of all processes in the order of one, and whether all are ``going_on``; forget them."""
        parts = sharing.all_gather_object((self.steps, self._ended, going_on))
        self.steps, self._ended = 0, []
        by_step = zip(*(ended for _, ended, _ in parts), strict=True)
        episodes = [episode for step in by_step for episode in chain(*step)]
        return sum(steps for steps, _, _ in parts), episodes, all(going for _, _, going in parts)


def segment_tensors(segment: Segment) -> dict[str, Any]:
    """Every tensor of a segment by name."""
    return vars(segment) | {"memory": segment.memory.tensors()}


def segment_of(tensors: Mapping[str, Any]) -> Segment:
    """The inverse of ``segment_tensors``."""
    return Segment(**(dict(tensors) | {"memory": PolicyState.from_tensors(tensors["memory"])}))
