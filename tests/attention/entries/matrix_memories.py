"""Memories that are a matrix per head: rows with their twins, which follow one episode token by token."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rltransformers.laws import Limit
from tests.attention.row import GROUPED, KERNEL, NONE, Row, fill
from tests.attention.stages import State, gated_output, short_convolution, sigmoid, softplus, unit_length
from tests.attention.twins import other_mixer


def delta_twin(mixer: Any, x: Tensor, count: int, kept: Callable[[Tensor, int], Tensor]) -> tuple[Tensor, State]:
    """Corrections of an episode behind the decay ``kept``, a number or one per channel, of a token and a head."""
    dims = mixer.dims
    rows, taps = short_convolution(mixer.project(x), mixer.conv)
    width, value_width = dims.head_dim, dims.value_dim
    queries = dims.heads * width
    values = queries + count * dims.kv_heads * width
    matrices, out = [torch.zeros(value_width, width) for _ in range(dims.heads)], []
    for t, row in enumerate(x):
        heads = []
        for h in range(dims.heads):
            g = h // (dims.heads // dims.kv_heads)
            matrices[h] = matrices[h] * kept(row, h)
            for r in range(count):
                place = r * dims.kv_heads + g
                k = unit_length(rows[t, queries + place * width :][:width])
                v = rows[t, values + place * value_width :][:value_width]
                beta = mixer.top * sigmoid(mixer.rate(row)[r * dims.heads + h])
                matrices[h] = matrices[h] + beta * torch.outer(v - matrices[h] @ k, k)
            heads.append(matrices[h] @ unit_length(rows[t, h * width :][:width]) / math.sqrt(width))
        out.append(gated_output(heads, row, mixer.out))
    return torch.stack(out), {"weights": torch.stack(matrices).transpose(1, 2), "taps": taps}


def gated_deltanet_twin(mixer: Any, x: Tensor) -> tuple[Tensor, State]:
    def kept(row: Tensor, h: int) -> Tensor:
        if mixer.decay is None:
            return torch.ones(())
        return torch.exp(-torch.exp(mixer.log_scale[h]) * softplus(mixer.decay.weight[h] @ row + mixer.step_bias[h]))

    return delta_twin(mixer, x, mixer.count, kept)


def kda_twin(mixer: Any, x: Tensor) -> tuple[Tensor, State]:
    def kept(row: Tensor, h: int) -> Tensor:
        down, up = (layer.weight for layer in mixer.decay)
        own = slice(h * mixer.dims.head_dim, (h + 1) * mixer.dims.head_dim)
        return torch.exp(-torch.exp(mixer.log_scale[h]) * softplus((up @ (down @ row))[own] + mixer.step_bias[own]))

    return delta_twin(mixer, x, 1, kept)


def block_map(x: Tensor, weight: Tensor) -> Tensor:
    """Maps of blocks of neighboring channels, one after another."""
    return torch.cat([part @ block for part, block in zip(x.split(weight.shape[1]), weight, strict=True)])


def mlstm_twin(mixer: Any, x: Tensor) -> tuple[Tensor, State]:
    """In the form with m, by which the sums are divided; at a distance from it nothing depends on m."""
    inner, width = mixer.skip.shape[0], mixer.head_dim
    rows = mixer.up(x)[:, :inner]
    near, taps = short_convolution(rows, mixer.conv)
    sums, norms = [torch.zeros(width, width)] * mixer.heads, [torch.zeros(width)] * mixer.heads
    largest, out = [torch.zeros(())] * mixer.heads, []
    for t, row in enumerate(x):
        q, k = (block_map(near[t], part.weight) for part in (mixer.query, mixer.key))
        v = block_map(rows[t], mixer.value.weight)
        gates, heads = mixer.gates(torch.cat([q, k, v])), []
        for h in range(mixer.heads):
            own = slice(h * width, (h + 1) * width)
            log_input, log_forget = gates[h], -softplus(-gates[mixer.heads + h])
            before, key = largest[h], k[own] / math.sqrt(width)
            largest[h] = torch.maximum(log_forget + before, log_input).detach()
            keep, add = torch.exp(log_forget + before - largest[h]), torch.exp(log_input - largest[h])
            sums[h] = keep * sums[h] + add * torch.outer(key, v[own])
            norms[h] = keep * norms[h] + add * key
            read = q[own] @ sums[h] / torch.maximum((q[own] @ norms[h]).abs(), torch.exp(-largest[h]))
            read = read - read.sum() / width
            heads.append(read / torch.sqrt(read @ read / width + 1e-5))
        gate = mixer.up(row)[inner:]
        out.append(mixer.down((torch.cat(heads) * mixer.gain + mixer.skip * near[t]) * gate * sigmoid(gate)))
    state = {"sum": torch.stack(sums), "norm": torch.stack(norms), "max": torch.stack(largest)}
    return torch.stack(out), {**state, "taps": taps}


def rwkv7_twin(mixer: Any, x: Tensor) -> tuple[Tensor, State]:
    """Peng et al. 2025, equations 2 to 17, without the residual of values; S as values by keys."""
    width, before = mixer.head_dim, torch.zeros(x.shape[1])
    matrices, out = [torch.zeros(width, width) for _ in range(mixer.heads)], []
    for row in x:
        mixed = {name: row + (before - row) * share for name, share in mixer.shares.items()}
        before = row
        r, k, v = (getattr(mixer, name).weight @ mixed[name] for name in ("query", "key", "value"))
        down, _, up = mixer.decay
        kept = torch.exp(-math.exp(-0.5) * sigmoid(up.bias + up.weight @ torch.tanh(down.weight @ mixed["decay"])))
        down, _, up = mixer.rate
        rate = sigmoid(up.bias + up.weight @ (down.weight @ mixed["rate"]))
        down, _, up = mixer.gate
        gate = up.weight @ sigmoid(down.weight @ mixed["gate"])
        removed, key, heads = k * mixer.removal, k * (1 + (rate - 1) * mixer.rate_share), []
        for h in range(mixer.heads):
            own = slice(h * width, (h + 1) * width)
            direction = removed[own] / torch.sqrt(removed[own] @ removed[own] + 1e-12)
            change = torch.diag(kept[own]) - torch.outer(direction, rate[own] * direction)
            matrices[h] = matrices[h] @ change + torch.outer(v[own], key[own])
            read = matrices[h] @ r[own]
            read = read - read.sum() / width
            read = read / torch.sqrt(read @ read / width + 1e-5 * width) * mixer.gain[own] + mixer.bias[own]
            heads.append(read + (r[own] * key[own] * mixer.bonus[own]).sum() * v[own])
        out.append(mixer.out.weight @ (torch.cat(heads) * gate))
    return torch.stack(out), {"weights": torch.stack(matrices).transpose(1, 2), "shift": x[-1:]}


DELTANET = "tests/mixers/test_gated_deltanet.py::"
KDA = "tests/mixers/test_kda.py::"
MLSTM = "tests/mixers/test_mlstm.py::"
RWKV7 = "tests/mixers/test_rwkv7.py::"

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
    # Against github.com/NX-AI/xlstm, 032a6fb, its parallel form and its steps behind the same stages in float64, with
    # nothing added to the denominator: largest error of outputs 7.5e-15, of gradients 3.8e-15; 7e-7 with its 1e-6.
    ("mixer", "mlstm"): Row(
        twin=other_mixer(mlstm_twin),
        config={**KERNEL, "tokens_per_step": 3},
        limits=(
            f"{MLSTM}test_with_all_gates_open_a_head_reads_sums_of_keys_and_values",
            f"{MLSTM}test_a_token_whose_input_gate_is_shut_leaves_nothing",
            f"{MLSTM}test_a_token_whose_input_gate_is_wide_open_outweighs_all_others",
        ),
    ),
    # Against github.com/fla-org/flash-linear-attention, bc3b101, its recurrence token by token behind the same stages
    # in float64, rates to 1 and 2: largest error of outputs 1.9e-15, of gradients 1.7e-15.
    ("mixer", "kda"): Row(
        twin=other_mixer(kda_twin),
        config={**GROUPED, "tokens_per_step": 2},
        limits=(
            f"{KDA}test_channels_that_decay_alike_are_those_of_gated_deltanet",
            f"{KDA}test_every_channel_forgets_by_itself",
        ),
    ),
    # Against github.com/fla-org/flash-linear-attention, bc3b101, its recurrence token by token (dplr) behind the stages
    # of its layer in float64: largest error of outputs 1.5e-12, of gradients 1.1e-12, from what is added to lengths.
    ("mixer", "rwkv7"): Row(
        twin=other_mixer(rwkv7_twin),
        config={**KERNEL, "tokens_per_step": 2, "mixer": {"name": "rwkv7", "rank": 3, "gate_rank": 2}},
        limits=(
            f"{RWKV7}test_with_rates_of_0_the_memory_is_a_sum_that_decays_channel_by_channel",
            f"{RWKV7}test_a_rate_of_1_removes_what_the_matrix_holds_under_the_key",
        ),
    ),
}

VARIANTS: dict[str, Row] = {
    "DeltaNet with negative eigenvalues and without norm": Row(
        {
            **GROUPED,
            "attention_bias": True,
            "mixer": {"name": "gated_deltanet", "decay": False, "negative_eigenvalues": True, "norm": False, "conv": 0},
        }
    ),
    "Gated DeltaNet with three corrections": Row(
        {
            **GROUPED,
            "tokens_per_step": 2,
            "mixer": {"name": "gated_deltanet", "householder": 3, "negative_eigenvalues": True, "conv": 2},
        }
    ),
    "mLSTM without expansion or convolution": Row(
        {**KERNEL, "mixer": {"name": "mlstm", "expansion": 1, "conv": 0, "block": 3}},
    ),
    "KDA with negative eigenvalues and without norm": Row(
        {
            **GROUPED,
            "attention_bias": True,
            "mixer": {"name": "kda", "negative_eigenvalues": True, "norm": False, "conv": 0, "rank": 2},
        }
    ),
}

# One layer of either kind: what the list repeats it repeats as it is.
PRESET_ROWS: dict[str, Row] = {
    "hybrid": Row({"mixer": ["gated_deltanet", {"name": "softmax", "qk_norm": True}]}),
    "kimi": Row({"mixer": ["kda", "softmax"]}),
    "griffin": Row({"mixer": ["rg_lru", "softmax"]}),
}
