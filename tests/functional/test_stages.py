"""Short convolutions and gated outputs against the formulas."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from rltransformers.functional.modules import unit_length
from rltransformers.functional.stages import GatedOutput, OutputGate, ShortConvolution
from tests.functional.test_recurrences import tokens_of

B, T, X = 3, 11, 5


@pytest.mark.parametrize(("bias", "silu"), [(False, True), (True, True), (True, False)])
def test_a_short_convolution_is_that_of_pytorch_in_every_episode(bias: bool, silu: bool) -> None:
    ours = ShortConvolution(X, bias=bias, silu=silu).double()
    torchs = nn.Conv1d(X, X, 4, groups=X, bias=bias, padding=3).double()
    assert ours.kernel is not None
    torchs.weight.data = ours.kernel.data.flip(-1)[:, None]
    if ours.bias is not None:
        assert torchs.bias is not None
        torchs.bias.data = ours.bias.data
    reset = torch.zeros(B, T, dtype=torch.bool)
    reset[0, 0] = reset[1, 6] = reset[2, 2] = reset[2, 3] = True
    x = torch.randn(B, T, X, dtype=torch.float64)
    tokens = tokens_of(reset, torch.full((B,), -1))
    out, _ = ours(x, torch.randn(B, *ours.state_shape, dtype=torch.float64), tokens)
    for b, starts in enumerate(([0, 11], [0, 6, 11], [0, 2, 3, 11])):
        for start, stop in pairwise(starts):
            alone = torchs(x[b : b + 1, start:stop].mT)[0, :, : stop - start].mT
            torch.testing.assert_close(out[b, start:stop], functional.silu(alone) if silu else alone)


@pytest.mark.parametrize("sizes", [[1] * T, [3, 1, 7]], ids=str)
def test_steps_of_a_short_convolution_are_its_segments(sizes: list[int]) -> None:
    ours, x = ShortConvolution(X), torch.randn(B, T, X)
    reset = torch.zeros(B, T, dtype=torch.bool)
    reset[1, 6] = reset[2, 2] = True
    past = torch.zeros(B, *ours.state_shape)
    whole, last = ours(x, past, tokens_of(reset, torch.full((B,), -1)))
    outs, start, before = [], 0, torch.full((B,), -1)
    for size in sizes:
        part = slice(start, start + size)
        tokens = tokens_of(reset[:, part], before)
        out, past = ours(x[:, part], past, tokens)
        outs.append(out)
        start, before = start + size, tokens.last_position()
    torch.testing.assert_close(torch.cat(outs, 1), whole)
    assert torch.equal(past, last)
    padding = tokens_of(reset, before, torch.tensor([0, T, 2]))
    assert torch.equal(ours(x.flip(1), past, padding)[1][0], past[0])  # no valid token


@pytest.mark.parametrize("silu", [False, True])
def test_without_taps_silu_is_left_and_no_row_is_kept(silu: bool) -> None:
    ours, x = ShortConvolution(X, 0, bias=True, silu=silu), torch.randn(B, T, X)
    out, past = ours(x, torch.zeros(B, *ours.state_shape), tokens_of(torch.zeros(B, T).bool(), torch.zeros(B).long()))
    assert torch.equal(out, functional.silu(x) if silu else x)
    assert past.shape == (B, 0, X) and not [*ours.parameters()]


@pytest.mark.parametrize("gate", ["silu", "sigmoid", "none"])
def test_a_gated_output_normalizes_every_head_alone(gate: OutputGate) -> None:
    heads, value_dim, width = 2, 3, 5
    ours = GatedOutput(width, heads, value_dim, gate, bias=True).double()
    nn.init.normal_(ours.gain)  # type: ignore[arg-type]  # there are gains
    read, h = torch.randn(B, heads, T, value_dim).double(), torch.randn(B, T, width).double()
    acts = {"silu": lambda x: x * x.sigmoid(), "sigmoid": torch.sigmoid, "none": torch.ones_like}

    def by_hand(b: int, t: int) -> Tensor:
        rows = [row[t] / (row[t].square().mean() + 1e-5).sqrt() * ours.gain for row in read[b]]
        opened = acts["none"](torch.cat(rows)) if ours.gate is None else acts[gate](ours.gate(h[b, t]))
        return ours.out(torch.cat(rows) * opened)

    expected = torch.stack([torch.stack([by_hand(b, t) for t in range(T)]) for b in range(B)])
    torch.testing.assert_close(ours(read, h), expected)
    torch.testing.assert_close(ours(read, h, slice(-2, None)), expected[:, -2:])
    torch.testing.assert_close(ours(1e3 * read, h), expected, rtol=1e-4, atol=1e-4)  # eps is all that differs


def test_without_norm_a_gated_output_is_linear_in_what_the_heads_read() -> None:
    ours = GatedOutput(5, 2, 3, norm=False).double()
    read, h = torch.randn(B, 2, T, 3).double(), torch.randn(B, T, 5).double()
    gate = ours.gate(h)  # type: ignore[misc]  # there is one
    torch.testing.assert_close(ours(read, h), ours.out(read.transpose(1, 2).flatten(2) * gate * gate.sigmoid()))
    torch.testing.assert_close(ours(1e-3 * read, h), 1e-3 * ours(read, h))
    assert {name for name, _ in ours.named_parameters()} == {"gate.weight", "out.weight"}


def test_reads_of_zero_have_outputs_and_gradients_of_a_bounded_size() -> None:
    ours, read = GatedOutput(5, 2, 3), torch.zeros(B, 2, T, 3, requires_grad=True)
    out = ours(read, torch.randn(B, T, 5))
    (gradient,) = torch.autograd.grad(out.sum(), read)
    assert out.isfinite().all() and gradient.isfinite().all()


def test_rows_of_any_length_become_as_long_as_one_and_zeros_stay() -> None:
    rows = torch.randn(20, 7, dtype=torch.float64) * torch.logspace(0, 6, 20, dtype=torch.float64)[:, None]
    expected = rows / torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    torch.testing.assert_close(unit_length(rows), expected, rtol=1e-5, atol=1e-5)
    assert unit_length(rows.bfloat16()).dtype == torch.float32
    zeros = torch.zeros(3, 7, requires_grad=True)
    out = unit_length(zeros)
    (gradient,) = torch.autograd.grad(out.sum(), zeros)
    assert out.eq(0).all() and gradient.isfinite().all()
