"""What an online agent carries through a run: memory and steps from update to update, episodes of a rollout."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

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


def endings(infos: list[dict[str, Any]], dones: np.ndarray | None) -> list[tuple[dict[str, Any], bool]]:
    """What the episodes of a step tell for the means of Stable-Baselines3: infos, and whether an episode ended."""
    ended = [False] * len(infos) if dones is None else dones.tolist()
    told: list[dict[str, Any]] = [
        {key: info[key] for key in ("episode", "is_success") if key in info} for info in infos
    ]
    return [(info, end) for info, end in zip(told, ended, strict=True) if info or end]


def segment_tensors(segment: Segment) -> dict[str, Any]:
    """Every tensor of a segment by name."""
    return vars(segment) | {"memory": segment.memory.tensors()}


def segment_of(tensors: Mapping[str, Any]) -> Segment:
    """The inverse of ``segment_tensors``."""
    return Segment(**(dict(tensors) | {"memory": PolicyState.from_tensors(tensors["memory"])}))
