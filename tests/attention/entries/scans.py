"""Scans of single numbers: rows with their twins, which follow one episode token by token, [t, D] to [t, D]."""

import math
from typing import Any

import torch
from torch import Tensor

from rltransformers.backbone import Backbone
from rltransformers.laws import Limit
from tests.attention.row import GROUPED, KERNEL, NONE, Row
from tests.attention.stages import State, short_convolution, sigmoid
from tests.attention.twins import other_mixer

SCANS = "tests/mixers/test_scans.py::"


def min_rnn_twin(mixer: Any, x: Tensor) -> tuple[Tensor, State]:
    """Feng et al. 2024, algorithms 1 and 4 (MinGRU) and 5 (MinLSTM), one token after another."""
    size, out, h = mixer.size, [], torch.zeros(mixer.size)
    for row in x:
        parts = list((mixer.project.weight @ row + mixer.project.bias).split(size))
        candidate = torch.stack([u + 0.5 if u >= 0 else sigmoid(u) for u in parts[-1]])
        if len(parts) == 2:
            z = sigmoid(parts[0])
            h = (1 - z) * h + z * candidate
        else:
            f, i = sigmoid(parts[0]), sigmoid(parts[1])
            h = f / (f + i) * h + i / (f + i) * candidate
        y = mixer.out.weight @ h + mixer.out.bias
        if mixer.highway is not None:
            s = sigmoid(mixer.highway.weight @ row + mixer.highway.bias)
            y = s * y + (1 - s) * row
        out.append(y)
    return torch.stack(out), {"carry": h}


def lru_twin(mixer: Any, x: Tensor) -> tuple[Tensor, State]:
    """Orvieto et al. 2023, equation 1 and section 3, in complex numbers."""
    size, out = mixer.states, []
    factor = torch.exp(torch.complex(-torch.exp(mixer.nu), torch.exp(mixer.theta)))
    of_inputs = torch.complex(mixer.project.weight[:size], mixer.project.weight[size:])
    of_states = torch.complex(mixer.out.weight[:, :size], -mixer.out.weight[:, size:])
    h = torch.zeros(size, dtype=factor.dtype)
    for row in x:
        h = factor * h + torch.exp(mixer.gamma) * (of_inputs @ torch.complex(row, torch.zeros_like(row)))
        out.append((of_states @ h).real + mixer.skip * row)
    return torch.stack(out), {"carry": torch.stack([h.real, h.imag])}


def s5_twin(mixer: Any, x: Tensor) -> tuple[Tensor, State]:
    """Smith et al. 2023, equations 2 and 6, in complex numbers."""
    size, out = mixer.states, []
    rate = torch.complex(-torch.exp(mixer.rate), mixer.turn)
    factor = torch.exp(rate * torch.exp(mixer.delta))
    of_inputs = torch.complex(mixer.project.weight[:size], mixer.project.weight[size:])
    of_states = torch.complex(mixer.out.weight[:, :size], -mixer.out.weight[:, size:])
    h = torch.zeros(size, dtype=factor.dtype)
    for row in x:
        h = factor * h + (factor - 1) / rate * (of_inputs @ torch.complex(row, torch.zeros_like(row)))
        out.append((of_states @ h).real + mixer.skip * row)
    return torch.stack(out), {"carry": torch.stack([h.real, h.imag])}


def held_inputs(special: Backbone, plain: Backbone) -> None:
    """A linear recurrent unit with the factors of a state space, whose inputs are held for a step."""
    for index in range(len(special.layers)):
        mine, other = (backbone.get_submodule(f"layers.{index}.mixing.mixer") for backbone in (special, plain))
        rate, turn, delta = (mine.get_parameter(name).data for name in ("rate", "turn", "delta"))
        turn.abs_()
        other.get_parameter("nu").data.copy_(rate + delta)
        other.get_parameter("theta").data.copy_(turn.log() + delta)
        other.get_parameter("gamma").data.zero_()
        exponent = torch.complex(-rate.exp(), turn)
        held = (torch.exp(exponent * delta.exp()) - 1) / exponent
        of_inputs = held[:, None] * torch.complex(*mine.get_parameter("project.weight").data.chunk(2))
        other.get_parameter("project.weight").data.copy_(torch.cat([of_inputs.real, of_inputs.imag]))


def rg_lru_twin(mixer: Any, x: Tensor) -> tuple[Tensor, State]:
    """De et al. 2024, equations 1 to 4, in the recurrent block of section 2.3."""
    size, out, h = mixer.size, [], torch.zeros(mixer.size)
    projected = [mixer.project.weight @ row + mixer.project.bias for row in x]
    inputs, taps = short_convolution(torch.stack(projected)[:, size:], mixer.conv)
    for both, y in zip(projected, inputs, strict=True):
        gates = sigmoid(mixer.gates.weight @ y + mixer.gates.bias)
        a = (1 / (1 + torch.exp(mixer.rate))) ** (8 * gates[:size])
        h = a * h + torch.sqrt(1 - a * a) * (gates[size:] * y)
        branch = both[:size]
        gelu = branch * 0.5 * (1 + torch.erf(branch / math.sqrt(2)))
        out.append(mixer.out.weight @ (gelu * h) + mixer.out.bias)
    return torch.stack(out), {"carry": h, "taps": taps}


def ffm_twin(mixer: Any, x: Tensor) -> tuple[Tensor, State]:
    """Morad et al. 2023, section 4, in complex numbers."""
    traces, frequencies = mixer.shape
    gamma = torch.exp(torch.complex(-mixer.alpha.abs()[:, None].expand(mixer.shape), mixer.omega.expand(mixer.shape)))
    s, out = torch.zeros(traces, frequencies, dtype=gamma.dtype), []
    for row in x:
        value, entry, gate = (mixer.project.weight @ row + mixer.project.bias).split([traces, traces, len(row)])
        u = value * sigmoid(entry)
        s = gamma * s + u[:, None]
        z = (mixer.out.weight @ torch.cat([s.real.flatten(), s.imag.flatten()]) + mixer.out.bias) * sigmoid(gate)
        mean = z.sum() / len(z)
        z = (z - mean) / torch.sqrt((z - mean).square().sum() / len(z) + 1e-5)
        out.append(z + (1 - sigmoid(gate)) * row)
    return torch.stack(out), {"sum": torch.stack([s.real, s.imag])}


def shm_twin(mixer: Any, x: Tensor) -> tuple[Tensor, State]:
    """Le et al. 2025, equations 5 to 8, a matrix [Dv, Dk] per key-value head, theta by the episode position."""
    dims, prime, out = mixer.dims, 2**31 - 1, []
    memories = [torch.zeros(dims.value_dim, dims.head_dim) for _ in range(dims.kv_heads)]

    def share(row: Tensor) -> Tensor:
        row = row * (row > 0)
        return row / (1e-5 + row.sum())

    for p, row in enumerate(x):
        queries, keys, values = (mixer.project(row)).split(mixer.dims.widths)
        number = pow(p + (dims.layer + 1) ** 5 * 1_000_003, 5, prime) % len(mixer.theta)
        for g in range(dims.kv_heads):
            theta = mixer.theta[number, g * dims.value_dim : (g + 1) * dims.value_dim]
            v_c = mixer.calibrate(row)[g * dims.head_dim : (g + 1) * dims.head_dim]
            change = torch.tanh(torch.outer(theta, v_c))
            change = torch.where(change > 0, mixer.growth * change, change)
            k = share(keys[g * dims.head_dim : (g + 1) * dims.head_dim])
            v = values[g * dims.value_dim : (g + 1) * dims.value_dim]
            memories[g] = memories[g] * (1 + change) + torch.outer(sigmoid(mixer.strength(row)[g]) * v, k)
        heads = [share(q) for q in queries.split(dims.head_dim)]
        out.append(torch.cat([memories[h * dims.kv_heads // dims.heads] @ q for h, q in enumerate(heads)]))
    return mixer.out(torch.stack(out)), {"sum": torch.stack([memory.T for memory in memories])}


def one_calibration(special: Backbone, plain: Backbone) -> None:
    """Learned vectors that are all the one of the plain backbone."""
    for name, value in special.named_parameters():
        if name.endswith("theta"):
            value.data.copy_(plain.get_parameter(name).data.expand_as(value))


def gate_of_forget(special: Backbone, plain: Backbone) -> None:
    """An input gate i and a forget gate 1 - i, which add up to 1: the gate z of a GRU."""
    for index in range(len(special.layers)):
        mine, other = (backbone.get_submodule(f"layers.{index}.mixing.mixer") for backbone in (special, plain))
        for name in ("project.weight", "project.bias"):
            of_gru = other.get_parameter(name).data
            z, candidate = of_gru.chunk(2)
            mine.get_parameter(name).data.copy_(torch.cat([-z, z, candidate]))


def open_highway(special: Backbone, plain: Backbone) -> None:
    """A highway gate that lets all of the cell's output pass."""
    for index in range(len(special.layers)):
        gate = special.get_submodule(f"layers.{index}.mixing.mixer.highway")
        gate.get_parameter("weight").data.zero_()
        gate.get_parameter("bias").data.fill_(60.0)


FACTORS = "a stored number is a product of the factors of all tokens since, each of which is rounded"

ROWS: dict[tuple[str, str], Row] = {
    # Against github.com/lucidrains/minGRU-pytorch, 38b26e1, minGRU and minLSTM in logarithms, without biases, the same
    # weights in float64: largest error of values 1.9e-15, of gradients 3.3e-15.
    ("mixer", "min_gru"): Row(
        twin=other_mixer(min_rnn_twin),
        config={**KERNEL, "tokens_per_step": 3},
        limits=(
            Limit({"mixer": {"name": "min_gru", "highway": True}, **NONE}, {"mixer": "min_gru", **NONE}, open_highway),
            f"{SCANS}test_a_minimal_gru_whose_gate_is_shut_holds_a_number_to_the_last_digit",
        ),
    ),
    ("mixer", "min_lstm"): Row(
        twin=other_mixer(min_rnn_twin),
        config=KERNEL,
        limits=(
            Limit({"mixer": "min_lstm", **NONE}, {"mixer": "min_gru", **NONE}, gate_of_forget),
            f"{SCANS}test_a_minimal_lstm_divides_no_zero_by_zero",
        ),
    ),
    # Against github.com/Gothos/LRU-pytorch, e250d5a, with a diagonal D, the same weights in float64: largest error of
    # values 1.8e-15, of gradients 1.3e-15.
    ("mixer", "lru"): Row(
        twin=other_mixer(lru_twin),
        config={**KERNEL, "mixer": {"name": "lru", "states": 7}},
        limits=(
            f"{SCANS}test_linear_recurrent_units_turn_as_clocks_and_lose_the_share_of_their_ring",
            f"{SCANS}test_an_lru_is_a_sum_of_powers_over_a_long_episode",
        ),
    ),
    ("mixer", "s5"): Row(
        twin=other_mixer(s5_twin),
        config={**KERNEL, "mixer": {"name": "s5", "states": 7}},
        limits=(
            Limit({"mixer": "s5", **NONE}, {"mixer": "lru", **NONE}, held_inputs),
            f"{SCANS}test_a_new_s5_is_the_dense_hippo_system_in_another_basis",
        ),
    ),
    # Against github.com/google-deepmind/recurrentgemma, 2efa84d, Conv1D and RGLRU of one head from position 1 on, the
    # same weights in float64: largest error of values 2.2e-16, of gradients 4.4e-16.
    ("mixer", "rg_lru"): Row(
        twin=other_mixer(rg_lru_twin),
        config={**KERNEL, "tokens_per_step": 3},
        limits=(f"{SCANS}test_an_rg_lru_starts_in_its_range_and_survives_gates_that_are_shut",),
    ),
    # Sums after 200 tokens, against github.com/proroklab/ffm, b3f94d2, FFA, the same weights in float64, its last
    # rounding to complex64 left out: largest error 3.8e-12, of its division by powers of Gamma.
    ("mixer", "ffm"): Row(
        twin=other_mixer(ffm_twin),
        config={**KERNEL, "mixer": {"name": "ffm", "traces": 5, "frequencies": 3}},
        limits=(f"{SCANS}test_traces_forget_at_their_rates_and_tell_ages_apart",),
    ),
    # Against github.com/thaihungle/SHM, 651f9e2, shm.py without its norm, one head, all theta alike (its draws are
    # always 0), the same weights in float64: largest error of values 7.2e-16, of gradients 1.4e-15.
    ("mixer", "shm"): Row(
        twin=other_mixer(shm_twin),
        config={**GROUPED, "tokens_per_step": 3},
        limits=(
            Limit({"mixer": "shm", **NONE}, {"mixer": {"name": "shm", "calibrations": 1}, **NONE}, one_calibration),
            f"{SCANS}test_without_calibration_hadamard_memory_is_the_sum_of_products",
        ),
        bfloat16=0.3,
        why=FACTORS,
    ),
}
VARIANTS: dict[str, Row] = {
    "a wide minimal gru beside a highway": Row(
        {**KERNEL, "mixer": {"name": "min_gru", "expansion": 1.6, "forget_bias": 2.0, "highway": True}}
    ),
    "a wide minimal lstm beside a highway": Row(
        {
            **KERNEL,
            "tokens_per_step": 2,
            "mixer": {"name": "min_lstm", "expansion": 2, "forget_bias": -1.0, "highway": True},
        }
    ),
    "complex numbers in a narrow ring": Row(
        {
            **KERNEL,
            "tokens_per_step": 2,
            "mixer": {"name": "lru", "r_min": 0.3, "r_max": 0.4, "max_phase": 0.5},
        }
    ),
    "a state space of one number with long steps": Row(
        {
            **KERNEL,
            "tokens_per_step": 2,
            "mixer": {"name": "s5", "states": 1, "delta_min": 0.5, "delta_max": 2.0},
        }
    ),
    "a real-gated recurrence without its convolution": Row(
        {**KERNEL, "mixer": {"name": "rg_lru", "conv": 0, "expansion": 1.5, "a_min": 0.3, "a_max": 0.6}}
    ),
    "traces of one frequency": Row(
        {**KERNEL, "tokens_per_step": 2, "mixer": {"name": "ffm", "traces": 9, "frequencies": 1, "period": 30.0}}
    ),
    "hadamard memory that hardly grows": Row(
        {**GROUPED, "attention_bias": True, "mixer": {"name": "shm", "calibrations": 5, "growth": 0.1}},
        bfloat16=0.3,
        why=FACTORS,
    ),
}
PRESET_ROWS: dict[str, Row] = {}
