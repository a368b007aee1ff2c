"""Auxiliary losses and metrics of attention, computed only where a record listens.

Axes: B batch, H heads, T tokens, S keys of all groups, V value width, D model width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rltransformers.attention.columns import Columns, beside
from rltransformers.attention.roles import Judged, Objective
from rltransformers.functional.call import Call
from rltransformers.functional.keys import Group, Rows

if TYPE_CHECKING:
    from rltransformers.attention.layer import Attention


def of_inputs(attention: Attention, h: Float[Tensor, "B T D"], window: Group, call: Call) -> None:
    """Report the losses of the parts, and of the values that the tokens themselves offer."""
    for part in attention.plan.parts:
        part.tell(h, call)
    if attention.plan.objectives and isinstance(window.place, Rows):
        values = attention.split(window.rows[:, -h.shape[1] :], shares=True)[1]
        for objective in attention.plan.objectives:
            add_loss(objective, objective.of_values(values), call)


def of_outputs(attention: Attention, heads: Float[Tensor, "B T HV"], call: Call) -> None:
    """Report the losses of what the heads read."""
    if attention.plan.objectives:
        outputs = heads.unflatten(-1, (attention.dims.heads, -1)).transpose(1, 2)
        for objective in attention.plan.objectives:
            add_loss(objective, objective.of_outputs(outputs), call)


def of_weights(attention: Attention, weights: Float[Tensor, "B H T S"], columns: Columns, call: Call) -> None:
    """Report the losses of the weights and, for a record of weights, look-back, entropy and empty slots.

    Look-back is in tokens, entropy in nats, empty slots are the share of the window that no token fills yet.
    """
    if call.probe.reads_weights:
        with torch.no_grad():
            add_metrics(attention, weights, columns, call)
    for objective in attention.plan.objectives:
        add_loss(objective, objective.of_weights(weights, columns, call.tokens), call)


def add_metrics(attention: Attention, weights: Float[Tensor, "B H T S"], columns: Columns, call: Call) -> None:
    """Add the metrics of ``of_weights`` to the record."""
    tokens, probe, heads = call.tokens, call.probe, attention.dims.heads
    valid = tokens.valid().to(weights.dtype)[:, None]
    count = valid.sum().clamp(min=1) * heads
    distance = beside(columns.distances()).expand_as(weights)
    far = (weights * distance).sum(-1)
    entropy = -(weights * weights.clamp(min=1e-12).log()).sum(-1)
    probe.metric("lookback", (far * valid).sum() / count)
    probe.metric("entropy", (entropy * valid).sum() / count)
    empty = (1 - attention.filled(tokens.p) / (attention.horizon + 1)).to(valid.dtype)
    probe.metric("empty_slots", (empty * valid[:, 0]).sum() / valid.sum().clamp(min=1))
    mass = weights.new_zeros(heads, columns.length)
    index = distance.transpose(0, 1).flatten(1)
    mass = mass.scatter_add_(1, index, (weights * valid[..., None]).transpose(0, 1).flatten(1))
    probe.lookback(mass / valid.sum().clamp(min=1))


def add_loss(objective: Objective, value: Judged | Tensor | None, call: Call) -> None:
    """Add a loss to the record: its mean over the valid tokens that the objective counts."""
    if value is None:
        return
    if isinstance(value, Tensor):
        value = Judged(value[:, None], torch.ones_like(value, dtype=torch.bool)[:, None])
    counts = (value.counts & call.tokens.valid()[:, None]).to(value.loss.dtype)
    call.probe.loss(objective.name, (value.loss * counts).sum() / counts.sum().clamp(min=1))
