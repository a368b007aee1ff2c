"""Dropout: rate, scale, independence, reproducibility."""

import pytest
import torch

from rltransformers.functional.modules import dropout


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_share_of_zeros_is_the_rate_and_the_mean_stays(rate: float) -> None:
    torch.manual_seed(0)
    count = 400_000
    out = dropout(torch.ones(count), rate)
    error = 4 * (rate * (1 - rate) / count) ** 0.5  # four standard deviations of a share
    assert abs((out == 0).double().mean().item() - rate) < error
    assert out[out > 0].unique().tolist() == pytest.approx(
        [1 / (1 - rate)], rel=2e-4
    )  # the rate is rounded to 1/65,536
    assert abs(out.double().mean().item() - 1) < error / (1 - rate)


def test_neighboring_numbers_that_share_a_draw_are_independent() -> None:
    torch.manual_seed(0)
    kept = dropout(torch.ones(100_000, 4, dtype=torch.float64), 0.3).ne(0).double()
    correlation = torch.corrcoef(kept.T) - torch.eye(4, dtype=torch.float64)
    assert correlation.abs().max() < 4 / 100_000**0.5


def test_the_gradient_is_scaled_like_the_value_and_a_seed_repeats_it() -> None:
    x = torch.randn(7, 9, requires_grad=True)  # 63 numbers: not a multiple of the four of one draw
    torch.manual_seed(4)
    out = dropout(x, 0.25)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(out, gradient * x)
    torch.manual_seed(4)
    assert torch.equal(dropout(x, 0.25), out)
