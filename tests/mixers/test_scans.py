"""Facts about mixers that scan single numbers which the contract does not state: what they keep, and for how long."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rltransformers.functional.call import Call, Tokens
from rltransformers.mixers import ffm, lru, min_rnn, rg_lru, s5, shm
from tests.mixers.episodes import DIMS, fresh, one_episode

pytestmark = pytest.mark.usefixtures("double")


def run(mixer: Any, x: Tensor, state: dict[str, Tensor] | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    """Outputs of an episode, or of its continuation after one token that left ``state``; the state after it."""
    first, state = (0, fresh(mixer, len(x))) if state is None else (1, state)
    mixed = mixer(x, state, Call(one_episode(x.shape[1], len(x), first)))
    return mixed.out, mixed.state


def finite_gradients(mixer: nn.Module) -> bool:
    """Whether every weight has a gradient, and all are finite."""
    return all(weight.grad is not None and bool(weight.grad.isfinite().all()) for weight in mixer.parameters())


@pytest.mark.parametrize("forget_bias", [-2.0, 0.0, 3.0])
def test_a_minimal_cell_keeps_the_share_that_its_start_says(forget_bias: float) -> None:
    f = torch.tensor(forget_bias).sigmoid().item()
    for build, share in ((min_rnn.MinGRU, f), (min_rnn.MinLSTM, f / (f + 0.5))):
        mixer = build(DIMS, min_rnn.Options(forget_bias=forget_bias))
        mixer.project.weight.data.zero_()
        mixer.project.bias.data[12 : mixer.gates * 12] = 0.0  # the input gate is half open
        mixer.project.bias.data[-12:] = -800.0  # the candidate is 0
        _, after = run(mixer, torch.randn(1, 7, 12), {"carry": torch.ones(1, 12)})
        torch.testing.assert_close(after["carry"], torch.full((1, 12), share**7))


def test_a_minimal_gru_whose_gate_is_shut_holds_a_number_to_the_last_digit() -> None:
    mixer = min_rnn.MinGRU(DIMS, min_rnn.Options())
    mixer.project.weight.data[:12] = 0.0
    mixer.project.weight.data[:12, 0] = 800.0  # the first channel of a token says whether to take it or to keep
    x = torch.randn(1, 1000, 12)
    x[..., 0] = -1.0
    x[:, 5, 0] = 1.0
    _, taken = run(mixer, x[:, :6])
    _, after = run(mixer, x[:, 6:], taken)
    assert (taken["carry"] > 0).all()
    assert (after["carry"] == taken["carry"]).all()


@pytest.mark.parametrize("logit", [-1e4, -200.0, 0.0, 200.0, 1e4])
def test_a_minimal_lstm_divides_no_zero_by_zero(logit: float) -> None:
    mixer = min_rnn.MinLSTM(DIMS, min_rnn.Options()).float()
    mixer.project.weight.data[:24] = 0.0
    mixer.project.bias.data[:24] = logit  # both gates alike: a half is kept, however far they are shut
    x = torch.randn(1, 9, 12, dtype=torch.float32)
    rows, _ = run(mixer, x)
    rows.square().sum().backward()
    candidates = min_rnn.positive_candidate(mixer.project(x)[..., 24:])
    mean = sum(candidates[:, t] * 0.5 ** (9 - t) for t in range(9))
    torch.testing.assert_close(rows[:, -1], mixer.out(mean))
    assert finite_gradients(mixer)


def test_linear_recurrent_units_turn_as_clocks_and_lose_the_share_of_their_ring() -> None:
    mixer = lru.LinearRecurrentUnit(DIMS, lru.Options(states=50, r_min=0.6, r_max=0.8, max_phase=1.0))
    real, imaginary = mixer.decays()
    radius, phase = torch.hypot(real, imaginary), torch.atan2(imaginary, real)
    assert 0.6 <= radius.min() < 0.65 and 0.75 < radius.max() <= 0.8
    assert 0 <= phase.min() < 0.1 and 0.9 < phase.max() <= 1.0
    torch.testing.assert_close(mixer.gamma.exp(), (1 - radius.square()).sqrt())
    mixer.nu.data.fill_(-60.0)  # nothing decays, and three tokens are one turn: the number of tokens modulo 3
    mixer.theta.data.fill_(math.log(2 * math.pi / 3))
    carry = torch.randn(1, 2, 50)
    for time, same in ((1, False), (2, False), (3, True), (300, True), (301, False)):
        _, after = run(mixer, torch.zeros(1, time, 12), {"carry": carry})
        assert torch.allclose(after["carry"], carry, atol=1e-9) is same


def test_an_lru_is_a_sum_of_powers_over_a_long_episode() -> None:
    mixer = lru.LinearRecurrentUnit(DIMS, lru.Options(states=4))
    x = torch.randn(1, 2000, 12)
    factor = torch.complex(*mixer.decays())
    entries = torch.complex(*(mixer.project(x).unflatten(-1, (2, 4)) * mixer.gamma.exp())[0].unbind(1))
    powers = factor ** torch.arange(1999, -1, -1)[:, None]
    expected = (powers * entries).sum(0)
    _, after = run(mixer, x)
    torch.testing.assert_close(after["carry"][0], torch.stack([expected.real, expected.imag]))


def test_a_new_s5_is_the_dense_hippo_system_in_another_basis() -> None:
    mixer = s5.S5(DIMS, s5.Options(states=4, delta_min=0.05, delta_max=0.05))
    n = torch.arange(8.0)
    products = torch.outer((2 * n + 1).sqrt(), (2 * n + 1).sqrt())
    legs = -(products.tril(-1) + torch.diag(n + 1))  # Gu et al. 2020, equation 2 of S5's appendix
    normal = legs + torch.outer((n + 0.5).sqrt(), (n + 0.5).sqrt())
    vectors = torch.complex(*s5.hippo_modes(4)[1])
    of_inputs = torch.complex(*mixer.project.weight.data.chunk(2))
    of_states = torch.complex(*mixer.out.weight.data.chunk(2, 1)).conj()
    entry, read = 2 * (vectors @ of_inputs).real, (of_states @ vectors.mH).real
    step = torch.linalg.matrix_exp(0.05 * normal)
    held = torch.linalg.solve(normal, step - torch.eye(8)) @ entry
    x, h, expected = torch.randn(1, 100, 12), torch.zeros(8), []
    for row in x[0]:
        h = step @ h + held @ row
        expected.append(read @ h + mixer.skip * row)
    torch.testing.assert_close(run(mixer, x)[0][0], torch.stack(expected))


def test_an_rg_lru_starts_in_its_range_and_survives_gates_that_are_shut() -> None:
    mixer = rg_lru.RealGatedLRU(DIMS, rg_lru.Options(a_min=0.5, a_max=0.7, expansion=8))
    mixer.gates.weight.data.zero_()
    x = torch.zeros(1, 1, 12)
    mixer.gates.bias.data.fill_(800.0)
    mixer.project.bias.data.zero_()
    assert mixer.conv.bias is not None
    mixer.conv.bias.data.zero_()
    start = {"carry": torch.ones(1, 96), "taps": torch.zeros(1, 3, 96)}
    kept = run(mixer, x, start)[1]["carry"]
    assert 0.5 <= kept.min() < 0.52 and 0.68 < kept.max() <= 0.7
    mixer = rg_lru.RealGatedLRU(DIMS, rg_lru.Options()).float()
    x = torch.randn(1, 50, 12, dtype=torch.float32)
    for logit in (-800.0, -40.0, 800.0):
        mixer.zero_grad()
        mixer.gates.bias.data.fill_(logit)
        out, _ = run(mixer, x)
        out.square().sum().backward()
        assert out.isfinite().all()
        assert finite_gradients(mixer)


def test_traces_forget_at_their_rates_and_tell_ages_apart() -> None:
    mixer = ffm.FastForgetfulMemory(DIMS, ffm.Options(traces=2, frequencies=3, period=9.0))
    torch.testing.assert_close(mixer.alpha.data, torch.tensor([1e-6, 0.5]))
    mixer.project.bias.data.zero_()
    x = torch.zeros(1, 10, 12)
    x[:, 0] = 1.0
    value, entry, _ = mixer.project(x[0, 0]).split(mixer.widths)
    sums = torch.complex(*run(mixer, x)[1]["sum"][0])
    rates = torch.tensor([1e-6, 0.5])[:, None] * 9
    turns = 2 * math.pi / torch.tensor([1.0, 5.0, 9.0]) * 9
    expected = (value * entry.sigmoid())[:, None] * torch.polar((-rates).exp().expand(2, 3), turns.expand(2, 3))
    torch.testing.assert_close(sums, expected)


def test_without_calibration_hadamard_memory_is_the_sum_of_products() -> None:
    mixer = shm.StableHadamardMemory(DIMS, shm.Options())
    mixer.theta.data.zero_()
    x = torch.randn(1, 2000, 12)
    _, k, v = mixer.project(x)[0].split(mixer.dims.widths, -1)
    key, value = k.unflatten(-1, (2, 3)).relu(), v.unflatten(-1, (2, 5))
    key = key / (key.sum(-1, keepdim=True) + 1e-5)
    expected = torch.einsum("tgk,tg,tgv->gkv", key, mixer.strength(x[0]).sigmoid(), value)
    torch.testing.assert_close(run(mixer, x)[1]["sum"][0], expected)


def test_factors_of_hadamard_memory_end_at_1_plus_growth_and_without_growth_nothing_stored_grows() -> None:
    x = 50 * torch.randn(1, 3000, 12, dtype=torch.float32)
    p = torch.arange(3000)[None]
    for growth in (0.0, 0.25, 1.0):
        mixer = shm.StableHadamardMemory(DIMS, shm.Options(growth=growth)).float()
        factors = mixer.factors(x, p)
        assert factors.min() < 0.01 and factors.max() == 1 + growth
    mixer = shm.StableHadamardMemory(DIMS, shm.Options(growth=0.0)).float()
    out, after = run(mixer, x)
    assert out.isfinite().all()
    stored = torch.rand(1, 2, 3, 5, dtype=torch.float32)
    mixer.project.weight.data.zero_()  # nothing is added any more
    for _ in range(3):
        _, after = run(mixer, x[:, :40], {"sum": stored})
        assert (after["sum"] <= stored).all()
        stored = after["sum"]


def test_what_overflows_in_hadamard_memory_ends_with_its_episode() -> None:
    mixer = shm.StableHadamardMemory(DIMS, shm.Options(calibrations=1)).float()
    mixer.theta.data.fill_(50.0)
    mixer.calibrate.weight.data.abs_()
    x = torch.rand(1, 400, 12, dtype=torch.float32) + 0.5  # every factor is 2
    out, _ = run(mixer, x)
    assert out[:, :100].isfinite().all() and not out[:, -1].isfinite().all()
    p = torch.cat([torch.arange(300), torch.arange(100)])[None]
    live = torch.zeros(1, 400, dtype=torch.bool)
    mixed = mixer(x, {"sum": torch.full((1, 2, 3, 5), math.inf)}, Call(Tokens(p, p, live, torch.tensor([7]))))
    assert mixed.out[:, 300:].isfinite().all() and mixed.state["sum"].isfinite().all()


def test_calibrations_are_drawn_evenly_without_a_period_and_differ_between_layers() -> None:
    p = torch.arange(128_000)[None]
    drawn = [shm.scatter(p, layer, 128)[0] for layer in (0, 1)]
    for places in drawn:
        counts = torch.bincount(places, minlength=128)
        assert counts.min() > 870 and counts.max() < 1130  # 1000 each, deviation 32
        agreeing = [(places[lag:] == places[:-lag]).double().mean().item() for lag in range(1, 300)]
        assert max(agreeing) < 1.5 / 128
    assert (drawn[0] == drawn[1]).double().mean() < 1.5 / 128
    assert torch.equal(shm.scatter(p[:, 1000:1001], 1, 128)[0], drawn[1][1000:1001])
