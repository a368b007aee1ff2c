"""Memory and steps that an online agent carries from one update to the next. Axis letter: E environments."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor

from rltransformers.core.checkpoint import check_same, check_tensor
from rltransformers.core.ranges import check
from rltransformers.data.rollout import RolloutBuffer, Segment
from rltransformers.policies.actor_critic import GTrXLPolicy
from rltransformers.policies.memory_policy import PolicyState

MemoryRefresh = Literal["never", "update", "epoch"]
"""Ways to treat memory written by older weights; the agents say what each does."""


@dataclass
class Carry:
    """Memory and steps that an online agent carries from one update to the next.

    Attributes:
        acting: state of the policy that acts, in every environment.
        segment: the newest whole rollout; None while one is collected, and of agents that learn from replay.
        before: the rollout in front of ``segment``, for ``memory_refresh="epoch"``; None unless it is needed.
        own_memory: memory of V-MPO's learner where the next rollout begins; None: that of ``acting``.
        target_age: gradient steps of V-MPO's learner since the target was renewed.
    """

    acting: PolicyState
    segment: Segment | None = None
    before: Segment | None = None
    own_memory: PolicyState | None = None
    target_age: int = 0


def renew_memory(
    policy: GTrXLPolicy, segment: Segment, acting: PolicyState, refresh: MemoryRefresh, rows: Tensor
) -> tuple[PolicyState, float]:
    """Return the memory to go on with after an update on ``segment``, and the staleness of that of ``acting``.

    With ``refresh`` "never" it is that of ``acting``, whose staleness is measured in the environments ``rows`` alone.
    """
    stored = policy.without_cache(acting)
    if refresh == "never":
        return stored, staleness(stored[rows], policy.memory_after(segment.rows(rows)))
    renewed = policy.memory_after(segment)
    return renewed, staleness(stored, renewed)


def staleness(stored: PolicyState, renewed: PolicyState) -> float:
    """|stored - renewed| / |renewed| over all floating-point memory of actor and critic."""
    pairs = [(stored.actor, renewed.actor)]
    if stored.critic is not None and renewed.critic is not None:
        pairs.append((stored.critic, renewed.critic))
    difference = size = 0.0
    for old, new in pairs:
        for name, tensor in new.tensors.items():
            if tensor.is_floating_point() and name in old.tensors:
                difference += float((old.tensors[name] - tensor).square().sum())
                size += float(tensor.square().sum())
    return (difference / size) ** 0.5 if size else 0.0


def segment_tensors(segment: Segment) -> dict[str, Any]:
    """Every tensor of a segment by name."""
    tensors = {field.name: getattr(segment, field.name) for field in fields(Segment)}
    return tensors | {"memory": segment.memory.tensors()}


def segment_of(tensors: Mapping[str, Any]) -> Segment:
    """The inverse of ``segment_tensors``."""
    return Segment(**(dict(tensors) | {"memory": PolicyState.from_tensors(tensors["memory"])}))


def stored_segment(
    tensors: Mapping[str, Any] | None, policy: GTrXLPolicy, n_envs: int, device: torch.device
) -> Segment | None:
    """The segment of ``segment_tensors``, for ``n_envs`` environments; None for None.

    Raises:
        CheckpointError: names the first part that does not belong to a segment of ``policy``.
    """
    if tensors is None:
        return None
    tensors = on_device(check(tensors, Mapping[str, Any], "segment"), device)
    steps = check_tensor(tensors["rewards"], "segment.rewards", (n_envs, None), torch.float32).shape[1]
    empty = RolloutBuffer(1, steps, policy.seen_leaves, policy.action_space, device)
    blank = policy.initial_state(1, cached=False)
    empty.reset(blank)
    check_same(tensors, segment_tensors(empty.finish(blank.previous_reward, 1.0, 1.0)), "segment", n_envs)
    return segment_of(tensors)


def on_device(value: Any, device: torch.device) -> Any:
    """Tensors in nested mappings on ``device``."""
    if isinstance(value, Tensor):
        return value.to(device)
    return {key: on_device(part, device) for key, part in value.items()} if isinstance(value, Mapping) else value
