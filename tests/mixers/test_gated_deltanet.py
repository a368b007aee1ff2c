"""What Gated DeltaNet stores, forgets and counts, with keys, values, rates and decays set by hand."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rltransformers.core.record import Probe, Record
from rltransformers.mixers.gated_deltanet import GatedDeltaNet, Options
from rltransformers.mixers.interface import Dims
from tests.mixers.episodes import read

K, V = 4, 3
ON, OFF = 100.0, -100.0
"""Inputs of a rate that is as large as it can be, and of one that is 0."""


pytestmark = pytest.mark.usefixtures("double")


def memory(count: int = 1, decay: bool = False, negative_eigenvalues: bool = False) -> GatedDeltaNet:
    """One head whose inputs are its query, keys, values, rates and decay, one after another."""
    width = K + count * (K + V + 1) + 1
    dims = Dims(width=width, heads=1, kv_heads=1, head_dim=K, value_dim=V, memory=1)
    mixer = GatedDeltaNet(dims, Options(negative_eigenvalues, conv=0, decay=decay, householder=count))
    rows, rates = torch.eye(width), K + count * (K + V)
    mixer.project.weight.data = rows[:rates]
    mixer.rate.weight.data = rows[rates : rates + count]
    if mixer.decay is not None:
        mixer.decay.weight.data = rows[-1:]
        mixer.log_scale.data.zero_()
        mixer.step_bias.data.zero_()
    return mixer


def inputs(asked: list[int], keys: Tensor, values: Tensor, rates: Tensor, decays: float | Tensor = 0.0) -> Tensor:
    """Inputs [1, T, D] of tokens that read under a key and write under others, by the numbers of the keys."""
    ends = torch.as_tensor(decays).expand(len(asked))[:, None]
    query = 1e4 * F.one_hot(torch.tensor(asked), K)  # orthogonal and long: of length 1 behind SiLU
    return torch.cat([query, 1e4 * F.one_hot(keys, K).flatten(1), values.flatten(1), rates, ends], -1)[None]


def run(mixer: GatedDeltaNet, h: Tensor, probe: Probe | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    """What every token of one episode reads [T, V], times the root of K; and the last state."""
    rows, state = read(mixer, h, probe)
    return math.sqrt(K) * rows[0, 0], state


def test_the_latest_value_under_a_key_is_read_back_and_the_others_stay() -> None:
    written = torch.tensor([2, 0, 2, 1, 0, 2, 1])
    values = torch.randn(7, V)
    for asked in range(K):
        rows, _ = run(memory(), inputs([asked] * 7, written[:, None], values, torch.full((7, 1), ON)))
        for t in range(7):
            places = [s for s in range(t + 1) if written[s] == asked]
            expected = F.silu(values[places[-1]]) if places else torch.zeros(V)
            torch.testing.assert_close(rows[t], expected)


def test_without_rates_the_memory_only_fades() -> None:
    decays, rates = torch.randn(6), torch.full((6, 1), OFF)
    rates[0] = ON
    values = torch.randn(6, V)
    rows, state = run(memory(decay=True), inputs([1] * 6, torch.ones(6, 1).long(), values, rates, decays))
    kept = (-F.softplus(decays[1:])).exp().cumprod(0)
    torch.testing.assert_close(rows, F.silu(values[0]) * torch.cat([torch.ones(1), kept])[:, None])
    torch.testing.assert_close(state["weights"][0, 0, 1], kept[-1] * F.silu(values[0]))


def test_a_head_forgets_before_it_corrects() -> None:
    """At a rate of 1 nothing of an older value under the key is left, and the new one has not faded."""
    values, decays = torch.randn(2, V), torch.tensor([0.0, 3.0])
    rows, _ = run(memory(decay=True), inputs([0, 0], torch.zeros(2, 1).long(), values, torch.full((2, 1), ON), decays))
    torch.testing.assert_close(rows, F.silu(values))


def test_rates_of_two_turn_the_sign_of_what_is_read_under_a_key() -> None:
    """Parity: a value whose sign says whether the number of ones so far is odd."""
    bits = torch.randint(2, (200,))
    rates = torch.where(bits == 1, ON, OFF)
    rates[0], values = 0.0, torch.zeros(200, V)  # a rate of 1 writes the value
    values[0] = torch.randn(V)
    h = inputs([3] * 200, torch.full((200, 1), 3), values, rates[:, None])
    rows, _ = run(memory(negative_eigenvalues=True), h)
    signs = torch.cat([torch.ones(1), (-1.0) ** bits[1:].cumsum(0)])
    torch.testing.assert_close(rows, signs[:, None] * F.silu(values[0]))


def test_further_corrections_at_a_rate_of_zero_change_nothing() -> None:
    keys, values, rates = torch.randint(K, (9, 3)), torch.randn(9, 3, V), torch.randn(9, 3)
    rates[:, 1:] = OFF
    asked, decays = torch.randint(K, (9,)).tolist(), torch.randn(9)
    several, state = run(memory(3, decay=True), inputs(asked, keys, values, rates, decays))
    one, after = run(memory(1, decay=True), inputs(asked, keys[:, :1], values[:, :1], rates[:, :1], decays))
    torch.testing.assert_close(several, one)
    torch.testing.assert_close(state["weights"], after["weights"])


def test_corrections_of_a_token_follow_one_another_behind_one_decay() -> None:
    """The second one replaces what the first has written under the same key, and reads nothing older under another."""
    keys, values = torch.tensor([[0, 1], [0, 0]]), torch.randn(2, 2, V)
    h = inputs([1, 1], keys, values, torch.full((2, 2), ON), 1.0)
    rows, state = run(memory(2, decay=True), h)
    faded = math.exp(-math.log1p(math.e)) * F.silu(values[0, 1])
    torch.testing.assert_close(rows, torch.stack([F.silu(values[0, 1]), faded]))
    torch.testing.assert_close(state["weights"][0, 0, :2], torch.stack([F.silu(values[1, 1]), faded]))


def test_the_record_tells_rates_and_what_is_kept() -> None:
    record = Record()
    h = inputs([0, 0], torch.zeros(2, 1).long(), torch.randn(2, V), torch.zeros(2, 1))
    run(memory(decay=True, negative_eigenvalues=True), h, Probe(record, "layer0"))
    assert record.metrics["layer0/rate"].item() == 1
    assert record.metrics["layer0/kept"].item() == pytest.approx(0.5)


def test_decays_start_between_those_of_the_shortest_and_the_longest_step() -> None:
    dims = Dims(width=8, heads=500, kv_heads=500, head_dim=1, value_dim=1, memory=1)
    mixer = GatedDeltaNet(dims, Options())
    steps, scales = F.softplus(mixer.step_bias.detach()), mixer.log_scale.detach().exp()
    assert 1e-3 <= float(steps.min()) < 1.2e-3 and 0.097 < float(steps.max()) <= 0.1
    assert 0 < float(scales.min()) < 0.5 and 15.5 < float(scales.max()) <= 16
