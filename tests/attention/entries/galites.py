"""GaLiTe and AGaLiTe: rows with their twins, which follow one episode token by token, head by head."""

import math
from typing import Any

import torch
from torch import Tensor

from tests.attention.row import GROUPED, GROUPED_SIZES, Row
from tests.attention.stages import State, sigmoid
from tests.attention.twins import other_mixer


def of_heads(mixer: Any, x: Tensor) -> list[dict[str, Tensor]]:
    """What a token says to each query head: its own query, and the rest of its key-value head."""
    dims, eta, rows = mixer.dims, mixer.eta, []
    widths = [dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim, dims.kv_heads * dims.value_dim]
    queries, keys, values = mixer.project(x).split(widths)
    sizes = {"b": dims.value_dim, "g": dims.head_dim, "p1": eta, "p3": eta, "p2": eta}
    gates, first = mixer.gates(x), 0
    found: dict[str, Tensor] = {}
    for name, size in sizes.items():
        count = dims.heads if name == "p2" else dims.kv_heads
        found[name] = gates[first : first + count * size].view(count, size)
        first += count * size
    for h in range(dims.heads):
        g = h * dims.kv_heads // dims.heads
        said = {name: value[h if name == "p2" else g] for name, value in found.items()}
        q = queries[h * dims.head_dim :][: dims.head_dim]
        k = keys[g * dims.head_dim :][: dims.head_dim]
        said["v"] = values[g * dims.value_dim :][: dims.value_dim]
        said["b"] = sigmoid(said["b"])
        said["phi_k"] = torch.outer(said["p1"].clamp(min=0), k.clamp(min=0)).flatten()
        said["phi_q"] = torch.outer(said["p2"].clamp(min=0), q.clamp(min=0)).flatten()
        said["g"] = torch.outer(sigmoid(said["p3"]), sigmoid(said["g"])).flatten()
        rows.append(said)
    return rows


def given(mixer: Any, heads: list[Tensor]) -> Tensor:
    """The output of a token."""
    out: Tensor = mixer.out(torch.cat(heads))
    return out.clamp(min=0) if mixer.relu else out


def grouped(mixer: Any, sums: list[State]) -> State:
    """States of the key-value heads, of which the first query head of each knows."""
    share = mixer.dims.heads // mixer.dims.kv_heads
    return {name: torch.stack([each[name] for each in sums[::share]]) for name in sums[0]}


def galite_twin(mixer: Any, x: Tensor) -> tuple[Tensor, State]:
    zeros = {"sum": torch.zeros(mixer.dims.value_dim, mixer.features), "norm": torch.zeros(mixer.features)}
    sums, rows = [dict(zeros) for _ in range(mixer.dims.heads)], []
    for row in x:
        heads = []
        for said, kept in zip(of_heads(mixer, row), sums, strict=True):
            b, g = said["b"], said["g"]
            kept["sum"] = torch.outer(1 - b, 1 - g) * kept["sum"] + torch.outer(b * said["v"], g * said["phi_k"])
            kept["norm"] = (1 - g) * kept["norm"] + g * said["phi_k"]
            heads.append(kept["sum"] @ said["phi_q"] / (kept["norm"] @ said["phi_q"] + 1e-5))
        rows.append(given(mixer, heads))
    return torch.stack(rows), grouped(mixer, sums)


def agalite_twin(mixer: Any, x: Tensor) -> tuple[Tensor, State]:
    count, rows = mixer.oscillators, []
    zeros = {
        "value_sums": torch.zeros(count, mixer.dims.value_dim),
        "key_sums": torch.zeros(count, mixer.features),
        "norm": torch.zeros(mixer.features),
    }
    omega = [-math.pi + 2 * math.pi * j / max(count - 1, 1) for j in range(count)]
    sums = [dict(zeros) for _ in range(mixer.dims.heads)]
    for p, row in enumerate(x):
        heads = []
        for said, kept in zip(of_heads(mixer, row), sums, strict=True):
            b, g, v, phi = said["b"], said["g"], said["v"], said["phi_k"]
            turn = [math.cos(w * (p + 2)) for w in omega]
            values = [(1 - b) * kept["value_sums"][j] + turn[j] * b * v for j in range(count)]
            keys = [(1 - g) * kept["key_sums"][j] + turn[j] * g * phi for j in range(count)]
            kept["norm"] = (1 - g) * kept["norm"] + g * phi
            kept["value_sums"], kept["key_sums"] = torch.stack(values), torch.stack(keys)
            read = torch.stack([value * (key @ said["phi_q"]) for value, key in zip(values, keys, strict=True)]).sum(0)
            heads.append(read / (2 * count * (kept["norm"] @ said["phi_q"]) + 1e-5))
        rows.append(given(mixer, heads))
    return torch.stack(rows), grouped(mixer, sums)


GALITES = "tests/mixers/test_galites.py::"
SMALL_SUMS = "a query whose rectified features are all near 0 divides one small sum by another"

ROWS: dict[tuple[str, str], Row] = {
    ("mixer", "agalite"): Row(
        twin=other_mixer(agalite_twin),
        config={**GROUPED, "mixer": {"name": "agalite", "eta": 3, "oscillators": 5}},
        limits=(
            f"{GALITES}test_oscillators_weigh_pairs_of_ticks",
            f"{GALITES}test_with_open_gates_the_token_itself_alone_is_read",
        ),
        float32=1e-4,
        why=SMALL_SUMS,
    ),
    ("mixer", "galite"): Row(
        twin=other_mixer(galite_twin),
        config={**GROUPED, "tokens_per_step": 3, "mixer": {"name": "galite", "eta": 2}},
        limits=(
            f"{GALITES}test_constant_gates_are_linear_attention_with_decays",
            f"{GALITES}test_with_open_gates_the_token_itself_alone_is_read",
        ),
        float32=1e-4,
        why=SMALL_SUMS,
    ),
}

VARIANTS: dict[str, Row] = {
    "one oscillator, not rectified": Row(
        {
            **GROUPED,
            "attention_bias": True,
            "mixer": {"name": "agalite", "eta": 1, "oscillators": 1, "relu": False},
        },
        float32=1e-4,
        why=SMALL_SUMS,
    ),
}

PRESET_ROWS: dict[str, Row] = {"agalite": Row({**GROUPED_SIZES, "mixer": {"name": "agalite", "eta": 2}})}
