"""Facts about GaLiTe and AGaLiTe that the contract does not state: what decays and oscillators do to weights."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rltransformers.functional.call import Call, Tokens
from rltransformers.functional.recurrences import causal_sums
from rltransformers.mixers import agalite, galite
from rltransformers.mixers.gated_products import EPS, GatedOptions, Writes
from rltransformers.mixers.interface import Dims
from tests.mixers.episodes import fresh, heads_of, one_episode

DIMS = Dims(width=8, heads=2, kv_heads=2, head_dim=3, value_dim=4, memory=1)
T = 19


pytestmark = pytest.mark.usefixtures("double")


def run(mixer: Any, x: Tensor, tokens: Tokens | None = None) -> Tensor:
    """What the heads read of an episode, [B, H, T, V]."""
    out: Tensor = mixer.read(x, *heads_of(mixer, x), fresh(mixer), Call(tokens or one_episode(x.shape[1])))[0]
    return out


def writes(mixer: Any, x: Tensor) -> Writes:
    result: Writes = mixer.writes(mixer.gates(x), *heads_of(mixer, x))
    return result


def test_constant_gates_are_linear_attention_with_decays() -> None:
    mixer, x = galite.GaLiTe(DIMS, GatedOptions(eta=2)), torch.randn(1, T, 8)
    b, g = 0.25, 0.4
    mixer.gates.bias = torch.nn.Parameter(torch.zeros(mixer.gates.out_features))
    gates = slice(0, mixer.gate_widths[0] + mixer.gate_widths[1])
    of_p3 = slice(gates.stop + mixer.gate_widths[2], gates.stop + 2 * mixer.gate_widths[2])
    with torch.no_grad():
        mixer.gates.weight[gates] = 0
        mixer.gates.weight[of_p3] = 0
        mixer.gates.bias[: mixer.gate_widths[0]] = math.log(b / (1 - b))
        mixer.gates.bias[mixer.gate_widths[0] : gates.stop] = math.log(g / (1 - g))
        mixer.gates.bias[of_p3] = 1000.0
    found = writes(mixer, x)
    query, key, value = (each.transpose(1, 2) for each in (found.query[:, :, :, 0], found.key, found.value))
    start = torch.zeros(1, 2, 6, 4)
    kept = torch.full((1, 2, T), math.log((1 - b) * (1 - g)))
    above, _ = causal_sums(query, key, value, start, one_episode(T), log_decay=kept)
    kept = torch.full((1, 2, T), math.log(1 - g))
    ones = torch.ones_like(value[..., :1])
    below, _ = causal_sums(query, key, ones, start[..., :1], one_episode(T), log_decay=kept)
    torch.testing.assert_close(run(mixer, x), above / (below + EPS))


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_oscillators_weigh_pairs_of_ticks(count: int) -> None:
    """A value is weighed by the features of every token, its own and others, by a sum over the frequencies."""
    mixer, x = agalite.AGaLiTe(DIMS, agalite.Options(eta=2, oscillators=count)), torch.randn(1, T, 8)
    found = writes(mixer, x)
    omega = torch.linspace(-math.pi, math.pi, count)
    tick = torch.arange(T) + 2
    turn = torch.cos(omega * tick[:, None])
    pairs = turn @ turn.T
    out = run(mixer, x)
    for head in range(2):
        for t in range(T):
            above, below = torch.zeros(4), torch.zeros(())
            left_of_values, left_of_keys = ([torch.ones(size)] * (t + 1) for size in (4, 6))
            for a in range(t - 1, -1, -1):
                left_of_values[a] = left_of_values[a + 1] * found.keep_value[0, a + 1, head]
                left_of_keys[a] = left_of_keys[a + 1] * found.keep_key[0, a + 1, head]
            for c in range(t + 1):
                weight = found.query[0, t, head, 0] @ (left_of_keys[c] * found.key[0, c, head])
                below = below + weight
                for a in range(t + 1):
                    above = above + pairs[a, c] * weight * left_of_values[a] * found.value[0, a, head]
            torch.testing.assert_close(out[0, head, t], above / (2 * count * below + EPS))


def test_ticks_of_late_tokens_are_as_exact_as_those_of_early_ones() -> None:
    torch.set_default_dtype(torch.float32)
    mixer, x = agalite.AGaLiTe(DIMS, agalite.Options(oscillators=8)), torch.randn(1, T, 8)
    early, late = (run(mixer, x, one_episode(T, first=first)) for first in (1, 1 + 14 * 10**6))  # 14 ticks are a period
    assert torch.equal(early, late)


@pytest.mark.parametrize("kind", [galite.GaLiTe, agalite.AGaLiTe])
def test_with_open_gates_the_token_itself_alone_is_read(kind: Any) -> None:
    mixer = kind(DIMS, agalite.Options(eta=2))
    x = torch.randn(1, T, 8)
    mixer.gates.bias = torch.nn.Parameter(torch.zeros(mixer.gates.out_features))
    values, keys, rows, _, _ = mixer.gate_widths
    with torch.no_grad():
        mixer.gates.bias[: values + keys] = 1000.0
        mixer.gates.bias[values + keys + rows : values + keys + 2 * rows] = 1000.0
        mixer.project.weight.abs_()
        mixer.gates.weight[values + keys : values + keys + rows].abs_()
        mixer.gates.weight[values + keys + 2 * rows :].abs_()
    x = x.abs()  # no product of a query and a key is 0
    value = writes(mixer, x).value.transpose(1, 2)
    share = torch.ones(T)
    if kind is agalite.AGaLiTe:
        tick = torch.arange(T) + 2
        share = torch.cos(torch.linspace(-math.pi, math.pi, 8) * tick[:, None]).square().sum(1) / 16
    torch.testing.assert_close(run(mixer, x), share[:, None] * value, rtol=1e-3, atol=1e-4)


def test_numbers_stay_finite_where_no_feature_is_left() -> None:
    for kind in (galite.GaLiTe, agalite.AGaLiTe):
        mixer = kind(DIMS, agalite.Options())
        x = torch.zeros(1, T, 8, requires_grad=True)
        out = run(mixer, x)
        assert out.eq(0).all()
        weights = [x, *mixer.parameters()]
        gradients = torch.autograd.grad(out.sum(), weights, allow_unused=True, materialize_grads=True)
        assert all(each.isfinite().all() for each in gradients)
