"""Cells of recurrent networks: rows with their twins, which follow one episode token by token, unit by unit."""

import math
from typing import Any

import torch
from torch import Tensor

from tests.attention.row import KERNEL, Row
from tests.attention.stages import State, sigmoid, tanh
from tests.attention.twins import other_mixer


def gates(mixer: Any, count: int, x: Tensor, h: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """What the token and the state say to each gate."""
    cell, u = mixer.cell, len(h)
    of_input, of_state = [], []
    for gate in range(count):
        rows = slice(gate * u, (gate + 1) * u)
        of_input.append(cell.weight_ih[rows] @ x + cell.bias_ih[rows])
        of_state.append(cell.weight_hh[rows] @ h + cell.bias_hh[rows])
    return of_input, of_state


def gru_twin(mixer: Any, x: Tensor) -> tuple[Tensor, State]:
    h, rows = torch.zeros(mixer.units), []
    for row in x:
        (r, z, n), (r_h, z_h, n_h) = gates(mixer, 3, row, h)
        z, new = sigmoid(z + z_h), tanh(n + sigmoid(r + r_h) * n_h)
        h = (1 - z) * new + z * h
        rows.append(mixer.out(h))
    return torch.stack(rows), {"cell": h}


def lstm_twin(mixer: Any, x: Tensor) -> tuple[Tensor, State]:
    h, c, rows = torch.zeros(mixer.units), torch.zeros(mixer.units), []
    for row in x:
        i, f, g, o = (a + b for a, b in zip(*gates(mixer, 4, row, h), strict=True))
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        h = sigmoid(o) * tanh(c)
        rows.append(mixer.out(h))
    return torch.stack(rows), {"output": h, "cell": c}


def slstm_twin(mixer: Any, x: Tensor) -> tuple[Tensor, State]:
    """By exponentials as they are; only the state that is compared is divided by that of its scale."""
    u, heads = mixer.units, mixer.heads
    size = u // heads
    h, c, n, m, rows = torch.zeros(u), torch.zeros(u), torch.zeros(u), torch.full((u,), -math.inf), []
    for row in x:
        said = mixer.of_token.weight @ row + mixer.of_token.bias
        gates = []
        for gate in range(4):
            parts = []
            for head in range(heads):
                own = slice(head * size, (head + 1) * size)
                of_state = mixer.of_state[head, :, gate * size : (gate + 1) * size]
                parts.append(said[gate * u :][own] + of_state.T @ h[own])
            gates.append(torch.cat(parts))
        i, f, z, o = gates
        c = sigmoid(f) * c + torch.exp(i) * tanh(z)
        n = sigmoid(f) * n + torch.exp(i)
        m = torch.maximum(torch.log(sigmoid(f)) + m, i)
        h = sigmoid(o) * c / n
        parts = []
        for part in h.view(heads, size):
            variance = (part - part.mean()).square().mean()
            parts.append((part - part.mean()) / torch.sqrt(variance + 1e-5))
        rows.append(mixer.out(torch.cat(parts) * mixer.gain))
    return torch.stack(rows), {"output": h, "cell": c / m.exp(), "norm": n / m.exp(), "max": m}


CELLS = "tests/mixers/test_cells.py::"

ROWS: dict[tuple[str, str], Row] = {
    ("mixer", "gru"): Row(
        twin=other_mixer(gru_twin),
        config={**KERNEL, "mixer": {"name": "gru", "units": 7}},
        limits=(
            f"{CELLS}test_an_episode_is_one_of_torchs_network",
            f"{CELLS}test_a_gru_with_an_open_update_gate_keeps_what_it_has",
        ),
    ),
    ("mixer", "lstm"): Row(
        twin=other_mixer(lstm_twin),
        config={**KERNEL, "tokens_per_step": 3, "mixer": {"name": "lstm", "units": 7}},
        limits=(
            f"{CELLS}test_an_episode_is_one_of_torchs_network",
            f"{CELLS}test_an_lstm_with_open_gates_counts",
        ),
    ),
    ("mixer", "slstm"): Row(
        twin=other_mixer(slstm_twin),
        config={**KERNEL, "heads": 2, "mixer": {"name": "slstm", "units": 8}},
        limits=(f"{CELLS}test_exponential_gates_take_means_and_the_loudest_token",),
    ),
}

VARIANTS: dict[str, Row] = {
    "cells among attention": Row({**KERNEL, "layers": 4, "mixer": ["lstm", "softmax", "gru", "slstm"]}),
}

PRESET_ROWS: dict[str, Row] = {}
