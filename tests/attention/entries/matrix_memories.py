"""Memories that are a matrix per head: rows with their twins, which follow one episode token by token."""

import math
from typing import Any

import torch
from torch import Tensor

from rltransformers.laws import Limit
from tests.attention.row import GROUPED, NONE, Row, fill
from tests.attention.twins import other_mixer

State = dict[str, Tensor]


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def softplus(x: Tensor) -> Tensor:
    return torch.log(1 + torch.exp(x))


def short_convolution(x: Tensor, conv: Any) -> tuple[Tensor, Tensor]:
    """A short convolution with SiLU of the rows of an episode, token by token, and the rows that it keeps."""
    taps, out = conv.kernel.shape[1], []
    for t in range(len(x)):
        total = torch.zeros(x.shape[1]) if conv.bias is None else conv.bias
        for lag in range(min(t + 1, taps)):
            total = total + conv.kernel[:, lag] * x[t - lag]
        out.append(total * sigmoid(total))
    return torch.stack(out), torch.cat([x.new_zeros(taps - 1, x.shape[1]), x])[len(x) :]


def gated_output(heads: list[Tensor], row: Tensor, stage: Any) -> Tensor:
    """The output of one token: heads divided by their root mean square, times a gate, projected."""
    rows = [head / torch.sqrt((head @ head) / len(head) + 1e-5) * stage.gain for head in heads]
    gate = stage.gate(row)
    act = gate * sigmoid(gate) if stage.act is torch.nn.functional.silu else sigmoid(gate)
    return stage.out(torch.cat(rows) * act)


def length_one(x: Tensor) -> Tensor:
    return x / torch.sqrt(x @ x + 1e-6)


def gated_deltanet_twin(mixer: Any, x: Tensor) -> tuple[Tensor, State]:
    dims, count = mixer.dims, mixer.count
    rows, state = mixer.project(x), {}
    if mixer.conv is None:
        rows = rows * sigmoid(rows)
    else:
        rows, state["taps"] = short_convolution(rows, mixer.conv)
    width, value_width = dims.head_dim, dims.value_dim
    queries = dims.heads * width
    values = queries + count * dims.kv_heads * width
    matrices, out = [torch.zeros(value_width, width) for _ in range(dims.heads)], []
    for t, row in enumerate(x):
        heads = []
        for h in range(dims.heads):
            g = h // (dims.heads // dims.kv_heads)
            if mixer.decay is not None:
                rate = softplus(mixer.decay.weight[h] @ row + mixer.step_bias[h])
                matrices[h] = matrices[h] * torch.exp(-torch.exp(mixer.log_scale[h]) * rate)
            for r in range(count):
                place = r * dims.kv_heads + g
                k = length_one(rows[t, queries + place * width :][:width])
                v = rows[t, values + place * value_width :][:value_width]
                beta = mixer.top * sigmoid(mixer.rate(row)[r * dims.heads + h])
                matrices[h] = matrices[h] + beta * torch.outer(v - matrices[h] @ k, k)
            heads.append(matrices[h] @ length_one(rows[t, h * width :][:width]) / math.sqrt(width))
        out.append(gated_output(heads, row, mixer.out))
    return torch.stack(out), {**state, "weights": torch.stack(matrices).transpose(1, 2)}


DELTANET = "tests/mixers/test_gated_deltanet.py::"

ROWS: dict[tuple[str, str], Row] = {
    # Against github.com/fla-org/flash-linear-attention, bc3b101, its recurrences token by token behind the same stages
    # in float64, 1 to 3 corrections, with and without decay, rates to 1 and 2: largest error of outputs 9.8e-15, of
    # gradients 2.7e-15.
    ("mixer", "gated_deltanet"): Row(
        twin=other_mixer(gated_deltanet_twin),
        config={**GROUPED, "tokens_per_step": 3},
        limits=(
            Limit(
                {"mixer": "gated_deltanet", **NONE},
                {"mixer": {"name": "gated_deltanet", "decay": False}, **NONE},
                fill("mixer.log_scale", -100.0),
            ),
            f"{DELTANET}test_without_rates_the_memory_only_fades",
            f"{DELTANET}test_the_latest_value_under_a_key_is_read_back_and_the_others_stay",
            f"{DELTANET}test_rates_of_two_turn_the_sign_of_what_is_read_under_a_key",
            f"{DELTANET}test_further_corrections_at_a_rate_of_zero_change_nothing",
        ),
    ),
}

VARIANTS: dict[str, Row] = {
    "DeltaNet with negative eigenvalues": Row(
        {
            **GROUPED,
            "attention_bias": True,
            "mixer": {"name": "gated_deltanet", "decay": False, "negative_eigenvalues": True, "conv": 0},
        }
    ),
    "Gated DeltaNet with three corrections": Row(
        {
            **GROUPED,
            "tokens_per_step": 2,
            "mixer": {"name": "gated_deltanet", "householder": 3, "negative_eigenvalues": True, "conv": 2},
        }
    ),
}

PRESET_ROWS: dict[str, Row] = {}
