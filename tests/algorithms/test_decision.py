"""The expectile of returns: its formula, its limits, and data of two behaviors whose returns are known."""

import pytest
import torch

from rltransformers.algorithms.decision import expectile_loss


def test_the_loss_worked_out_by_hand() -> None:
    prediction, target = torch.tensor([[1.0, 5.0, 7.0]]), torch.tensor([[3.0, 4.0, float("nan")]])
    loss = expectile_loss(prediction, target, 0.9, torch.tensor([[True, True, False]]))
    assert float(loss) == pytest.approx((0.9 * 4 + 0.1 * 1) / 2)


def test_an_expectile_of_one_half_is_half_the_squared_error() -> None:
    prediction, target = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    valid = torch.ones(3, 4, dtype=torch.bool)
    torch.testing.assert_close(
        expectile_loss(prediction, target, 0.5, valid), (target - prediction).square().mean() / 2
    )


@pytest.mark.parametrize(("expectile", "expected"), [(0.5, 4.0), (0.9, 8.2), (0.999, 9.988)])
def test_the_minimum_moves_from_the_mean_to_the_largest_return(expectile: float, expected: float) -> None:
    """A quarter of the steps returns 10, the others 2: the minimum is (10 tau / 4 + 6 (1 - tau) / 4) / weights."""
    target = torch.tensor([[10.0, 2.0, 2.0, 2.0]], dtype=torch.float64)
    by_hand = (10 * expectile + 6 * (1 - expectile)) / (expectile + 3 * (1 - expectile))
    assert by_hand == pytest.approx(expected, abs=0.2)
    prediction = torch.zeros((), dtype=torch.float64, requires_grad=True)
    for _ in range(400):
        (slope,) = torch.autograd.grad(
            expectile_loss(prediction.expand(1, 4), target, expectile, torch.ones(1, 4, dtype=torch.bool)), prediction
        )
        prediction = (prediction - slope).detach().requires_grad_(True)
    assert float(prediction.detach()) == pytest.approx(by_hand, abs=1e-6)
