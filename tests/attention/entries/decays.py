"""Sums that decay: rows with their twins, which follow one episode token by token, [t, D] to [t, D] and the state."""

import math
from typing import Any

import torch
from torch import Tensor

from rltransformers.laws import Limit
from tests.attention.row import GROUPED, KERNEL, NONE, Row
from tests.attention.stages import State, gated_output, short_convolution, sigmoid, softplus
from tests.attention.twins import other_mixer


def of_tokens(stage: Any, heads: list[list[Tensor]], x: Tensor) -> Tensor:
    """Outputs of all tokens, of what every head read at each."""
    return torch.stack([gated_output(list(read), row, stage) for *read, row in zip(*heads, x, strict=True)])


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
    return of_tokens(mixer.out, read, x), {"sum": torch.stack(sums)}


def mamba2_twin(mixer: Any, x: Tensor) -> tuple[Tensor, State]:
    width, states, outs = mixer.inner // mixer.heads, mixer.state, []
    gates, rows, steps = mixer.project(x).split([mixer.inner, mixer.inner + 2 * states, mixer.heads], -1)
    rows, taps = short_convolution(rows, mixer.conv)
    sums = [torch.zeros(states, width) for _ in range(mixer.heads)]
    for t, gate in enumerate(gates):
        key, query = rows[t, mixer.inner : mixer.inner + states], rows[t, mixer.inner + states :]
        out = []
        for h in range(mixer.heads):
            value = rows[t, h * width : (h + 1) * width]
            step = softplus(steps[t, h] + mixer.step_bias[h])
            decay = torch.exp(-torch.exp(mixer.log_rate[h]) * step)
            sums[h] = decay * sums[h] + step * torch.outer(key, value)
            out.append(sums[h].T @ query + mixer.skip[h] * value)
        y = torch.cat(out) * gate * sigmoid(gate)
        outs.append(mixer.out(y / torch.sqrt((y**2).mean() + 1e-5) * mixer.gain))
    return torch.stack(outs), {"sum": torch.stack(sums), "taps": taps}


def turn(rows: Tensor, base: float | None, steps: int) -> Tensor:
    """Rows of [Dh, .] turned by so many tokens: pairs of channels as complex numbers."""
    pairs, out = len(rows) // 2, list(rows)
    if base is None:
        return rows
    for f in range(pairs):
        angle = torch.tensor(steps * base ** (-f / pairs))
        out[2 * f] = rows[2 * f] * torch.cos(angle) - rows[2 * f + 1] * torch.sin(angle)
        out[2 * f + 1] = rows[2 * f] * torch.sin(angle) + rows[2 * f + 1] * torch.cos(angle)
    return torch.stack(out)


def retention_twin(mixer: Any, x: Tensor) -> tuple[Tensor, State]:
    """The recurrence with complex decays: the sum turns back by one token where the keys do not turn at all."""
    dims, base = mixer.dims, mixer.base
    width, value_width = dims.head_dim, dims.value_dim
    read, sums = [], []
    for h in range(dims.heads):
        decay = 1 - 2.0 ** -(5 + h) if mixer.logit is None else sigmoid(mixer.logit[h])
        g, total, out = h * dims.kv_heads // dims.heads, torch.zeros(width, value_width), []
        for row in x:
            q, k, v = mixer.project(row).split(dims.widths)
            stored = torch.outer(k[g * width : (g + 1) * width], v[g * value_width : (g + 1) * value_width])
            total = decay * turn(total, base, -1) + stored
            out.append(total.T @ q[h * width : (h + 1) * width] / math.sqrt(width))
        read.append(out)
        sums.append(turn(total, base, -1))
    return of_tokens(mixer.out, read, x), {"sum": torch.stack(sums)}


def decays_of_heads(special: Any, plain: Any) -> None:
    """Channels that all decay at the learned rate of their head, whatever the token."""
    for index in range(len(special.layers)):
        mine, other = (backbone.get_submodule(f"layers.{index}.mixing.mixer") for backbone in (special, plain))
        rates = other.get_submodule("rates.1")
        rates.get_parameter("weight").data.zero_()
        logits = mine.get_parameter("logit").data
        rates.get_parameter("bias").data.copy_(logits.repeat_interleave(mine.dims.head_dim))


GLA = "tests/mixers/test_gla.py::"
MAMBA2 = "tests/mixers/test_mamba2.py::"
RETENTION = "tests/mixers/test_retention.py::"
OF_HEADS = {"mixer": {"name": "retention", "decay": "learned", "base": None}}
OF_CHANNELS = {"mixer": {"name": "gla", "temperature": 1.0}}

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
    # Against the same repository's mamba2.py, its chunks in plain PyTorch, which are those of transformers, the same
    # weights and up to 150 tokens in float64: largest error 3e-15, of gradients 1e-15.
    ("mixer", "mamba2"): Row(
        twin=other_mixer(mamba2_twin),
        config={**KERNEL, "mixer": {"name": "mamba2", "state": 5}},
        limits=(
            f"{MAMBA2}test_steps_near_zero_leave_the_state_and_long_ones_replace_it",
            f"{MAMBA2}test_without_what_it_keeps_a_token_meets_the_last_taps_alone",
        ),
    ),
    # Against the same repository's naive retention of turned queries and keys between the same projections, up to 150
    # tokens in float64: largest error 1e-14, of gradients 1e-15.
    ("mixer", "retention"): Row(
        twin=other_mixer(retention_twin),
        config={**GROUPED, "mixer": "retention"},
        limits=(
            Limit({**NONE, **OF_HEADS}, {**NONE, **OF_CHANNELS}, decays_of_heads),
            f"{RETENTION}test_without_decay_and_turns_the_sums_are_those_of_linear_attention",
        ),
        bfloat16=0.3,
        why="what a head reads is divided by its own size, which is small where products of queries and keys cancel",
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
    "retention that learns to forget": Row(
        {
            **KERNEL,
            "head_dim": 4,
            "attention_bias": True,
            "tokens_per_step": 3,
            "mixer": {"name": "retention", "decay": "learned"},
        }
    ),
    "retention that does not turn": Row({**GROUPED, "mixer": {"name": "retention", "base": None}}),
    "state space without a convolution": Row(
        {**KERNEL, "tokens_per_step": 3, "mixer": {"name": "mamba2", "state": 3, "expand": 1, "conv": 0}}
    ),
}

PRESET_ROWS: dict[str, Row] = {}
