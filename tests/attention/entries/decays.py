"""Sums that decay: rows with their twins, which follow one episode token by token, [t, D] to [t, D] and the state."""

import math
from typing import Any

import torch
from torch import Tensor

from tests.attention.entries.kernels import State
from tests.attention.row import GROUPED, Row
from tests.attention.twins import other_mixer


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def gated_output(output: Any, heads: list[list[Tensor]], x: Tensor) -> Tensor:
    """Norm and gate of what every head read at every token, and the projection."""
    rows = []
    for t, row in enumerate(x):
        mixed = torch.cat([r[t] / torch.sqrt((r[t] ** 2).mean() + 1e-5) * output.gain for r in heads])
        if output.gate is not None:
            gate = output.gate(row)
            mixed = mixed * sigmoid(gate) * (gate if output.act is torch.nn.functional.silu else 1)
        rows.append(output.out(mixed))
    return torch.stack(rows)


def gla_twin(mixer: Any, x: Tensor) -> tuple[Tensor, State]:
    dims = mixer.dims
    width, value_width = dims.head_dim, dims.value_dim
    read, sums = [], []
    for h in range(dims.heads):
        g, total, out = h * dims.kv_heads // dims.heads, torch.zeros(width, value_width), []
        for row in x:
            q, k, v = mixer.project(row).split(mixer.dims.widths)
            rate = mixer.rates[1](mixer.rates[0](row))[g * width : (g + 1) * width]
            decay = sigmoid(rate) ** (1 / mixer.temperature)
            stored = torch.outer(k[g * width : (g + 1) * width], v[g * value_width : (g + 1) * value_width])
            total = torch.diag(decay) @ total + stored
            out.append(total.T @ q[h * width : (h + 1) * width] / math.sqrt(width))
        read.append(out)
        sums.append(total)
    return gated_output(mixer.output, read, x), {"sum": torch.stack(sums)}


GLA = "tests/mixers/test_gla.py::"

ROWS: dict[tuple[str, str], Row] = {
    # Against github.com/fla-org/flash-linear-attention, bc3b101, the naive recurrence between the projections of its
    # layer, the same weights and 150 tokens in float64: largest error 4e-14, of gradients 9e-15.
    ("mixer", "gla"): Row(
        twin=other_mixer(gla_twin),
        config={**GROUPED, "mixer": {"name": "gla", "rank": 3, "temperature": 2.0}},
        limits=(
            f"{GLA}test_with_one_decay_for_all_channels_the_sums_are_those_of_one_rate_per_head",
            f"{GLA}test_a_channel_that_keeps_everything_holds_the_first_token_and_one_that_keeps_nothing_the_last",
        ),
    ),
}

VARIANTS: dict[str, Row] = {
    "channels that decay behind sigmoid gates": Row(
        {
            **GROUPED,
            "attention_bias": True,
            "tokens_per_step": 3,
            "mixer": {"name": "gla", "rank": 2, "gate": "sigmoid"},
        }
    ),
    "channels that decay without gates": Row({**GROUPED, "mixer": {"name": "gla", "rank": 2, "gate": "none"}}),
}

PRESET_ROWS: dict[str, Row] = {}
