"""Metrics of the memory of an agent: where attention looks, and how old what it reads is."""

from collections.abc import Callable

import torch
from torch import Tensor

from rltransformers.backbone import Record
from rltransformers.policies.memory_policy import PolicyState


@torch.no_grad()
def memory_panel(forward: Callable[[Record], object]) -> dict[str, Tensor]:
    """How far attention looks back and the like, by path of the metric.

    Args:
        forward: runs the network with this record, for nothing else, so that looking never changes an update.
    """
    record = Record(weights=True)
    forward(record)
    return {f"memory/{name}": value for name, value in record.metrics.items()}


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
