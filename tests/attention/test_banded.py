"""Banded attention against the formula, with gradients."""

import math

import pytest
import torch
from torch import Tensor

from rltransformers.attention.engines import banded, diagonals


def parts(heads: int = 2, time: int = 5, memory: int = 7, length: int | None = 8) -> tuple[Tensor, ...]:
    """Queries, keys, values, scores by distance and a mask with rows of several lengths."""
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator, requires_grad=True)

    keys = memory + time
    d = memory + torch.arange(time)[:, None] - torch.arange(keys)
    farthest = torch.tensor([4, 7, 1])[:, None, None, None]
    mask = torch.where((d >= 0) & (d <= farthest), 0.0, -math.inf).double()
    scores = draw(3, heads, time, length) if length else draw(heads, 3)
    return draw(3, heads, time, 4), draw(3, heads, keys, 4), draw(3, heads, keys, 6), scores, mask


def by_formula(q: Tensor, k: Tensor, v: Tensor, scores: Tensor, mask: Tensor) -> Tensor:
    time, keys, length = q.shape[2], k.shape[2], scores.shape[-1]
    logits = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask
    whole = torch.zeros_like(logits)
    for t in range(time):
        for s in range(keys):
            d = keys - time + t - s
            if 0 <= d < length:
                whole[:, :, t, s] = (
                    scores[..., length - 1 - d] if scores.dim() == 2 else scores[:, :, t, length - 1 - d]
                )
    return (logits + whole).softmax(-1) @ v


@pytest.mark.parametrize("length", [8, 5, None])
def test_values_and_gradients_are_those_of_the_formula(length: int | None) -> None:
    q, k, v, scores, mask = parts(length=length)
    inputs = (q, k, v, scores)
    out, expected = banded(q, k, v, scores, mask), by_formula(q, k, v, scores, mask)
    torch.testing.assert_close(out, expected)
    weight = torch.randn_like(out)
    found = torch.autograd.grad((out * weight).sum(), inputs)
    wanted = torch.autograd.grad((expected * weight).sum(), inputs)
    torch.testing.assert_close(found, wanted)


def test_gradients_with_dropout_follow_the_weights_that_were_kept() -> None:
    q, k, v, scores, mask = parts()

    def out(q: Tensor, k: Tensor, v: Tensor, scores: Tensor) -> Tensor:
        torch.manual_seed(3)
        return banded(q, k, v, scores, mask, dropout=0.4)

    assert torch.autograd.gradcheck(out, (q, k, v, scores))
    assert not torch.equal(out(q, k, v, scores), banded(q, k, v, scores, mask))


def test_diagonals_hold_one_distance_per_column() -> None:
    time, memory, length = 3, 4, 5
    d = memory + torch.arange(time)[:, None] - torch.arange(memory + time, dtype=torch.float64)
    view = diagonals(d.expand(2, 3, -1, -1).contiguous(), length)
    assert (view == torch.arange(length - 1, -1, -1)).all()
