"""Targets of critics inside a window, and what they add to a loss: by hand, and against a loop over single steps."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rltransformers.algorithms.critic import (
    alignment_loss,
    critic_loss,
    policy_gain,
    stitching_weight,
    value_scale,
    window_targets,
)

# float64: sums of a few terms of order 1 in another order
EXACT: dict[str, Any] = {"atol": 1e-12, "rtol": 0.0}


def windows(rows: int = 40, steps: int = 7) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rewards, terminations, valid and bootstraps; windows of all lengths, padding holds anything."""
    generator = torch.Generator().manual_seed(2)
    rewards = torch.randn(rows, steps, generator=generator, dtype=torch.float64)
    lengths = torch.randint(1, steps + 1, (rows,), generator=generator)
    valid = torch.arange(steps) < lengths[:, None]
    ends = torch.rand(rows, generator=generator) < 0.5
    terminated = ends[:, None] & (torch.arange(steps) >= lengths[:, None] - 1)  # padding repeats the last step
    return rewards, terminated, valid, torch.randn(rows, generator=generator, dtype=torch.float64)


def test_targets_worked_out_by_hand() -> None:
    rewards = torch.tensor([[1.0, 2.0, 4.0, 9.0], [1.0, 2.0, 4.0, 9.0], [8.0, 9.0, 9.0, 9.0]])
    valid = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 0], [1, 0, 0, 0]]).bool()
    terminated = torch.tensor([[0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0]]).bool()
    targets, counts = window_targets(rewards, terminated, valid, torch.tensor([16.0, 16.0, 16.0]), 0.5)
    # Goes on: y_2 = 16 stands for the value there, y_1 = 2 + 16/2, y_0 = 1 + 10/2. Ends: y_2 = 4, y_1 = 4, y_0 = 3.
    assert targets.tolist() == [[6.0, 10.0, 16.0, 0.0], [3.0, 4.0, 4.0, 0.0], [16.0, 0.0, 0.0, 0.0]]
    assert counts.tolist() == [[True, True, False, False], [True, True, True, False], [False] * 4]


def test_targets_are_those_of_a_loop_over_single_steps() -> None:
    rewards, terminated, valid, bootstrap = windows()
    targets, counts = window_targets(rewards, terminated, valid, bootstrap, 0.9)
    for b in range(len(rewards)):
        length = int(valid[b].sum())
        last, done = length - 1, bool(terminated[b, length - 1])
        for t in range(length):
            expected = sum(0.9 ** (j - t) * float(rewards[b, j]) for j in range(t, last))
            expected += 0.9 ** (last - t) * float(rewards[b, last] if done else bootstrap[b])
            assert float(targets[b, t]) == pytest.approx(expected, abs=1e-12)
            assert bool(counts[b, t]) == (t < last or done)
    assert not counts[~valid].any()


def test_amount_side_and_content_of_padding_change_no_target() -> None:
    rewards, terminated, valid, bootstrap = windows()
    targets, counts = window_targets(rewards, terminated, valid, bootstrap, 0.9)

    def pad(value: Tensor, filling: float) -> Tensor:
        front, back = (torch.full((len(value), n), filling).to(value) for n in (2, 3))
        return torch.cat([front, value, back], 1)

    padded = window_targets(pad(rewards, math.nan), pad(terminated, 1.0), pad(valid, 0.0), bootstrap, 0.9)
    torch.testing.assert_close(padded[0][:, 2:-3], targets, **EXACT)
    assert torch.equal(padded[1], pad(counts, 0.0))


def test_both_critics_lose_their_mean_squared_error_over_steps_that_count() -> None:
    values = torch.tensor([[[1.0, 5.0, 3.0]], [[0.0, 9.0, 9.0]]])
    loss = critic_loss(values, torch.tensor([[2.0, 3.0, 7.0]]), torch.tensor([[True, True, False]]))
    assert float(loss) == (1 + 4) / 2 + (4 + 36) / 2


def test_poor_episodes_are_improved_upon_and_the_best_are_copied() -> None:
    weight = stitching_weight(torch.tensor([10.0, 6.0, 2.0, 11.0]), best=10.0, spread=8.0, weight=3.0)
    assert weight.tolist() == [0.0, 1.5, 3.0, 0.0]


def test_the_gain_is_the_weighted_value_in_units_of_the_mean_value() -> None:
    values = torch.tensor([[2.0, -4.0], [6.0, 99.0]], requires_grad=True)
    valid = torch.tensor([[True, True], [True, False]])
    assert float(value_scale(values, valid)) == 4.0
    gain = policy_gain(values, torch.tensor([1.0, 3.0]), valid)
    assert float(gain.detach()) == pytest.approx((2 - 4 + 18) / 3 / 4)
    gain.backward()  # the scale is a constant
    assert values.grad is not None
    torch.testing.assert_close(values.grad, torch.tensor([[1.0, 1.0], [3.0, 0.0]]) / 12)


def test_rewards_in_other_units_change_neither_gain_nor_alignment() -> None:
    generator = torch.Generator().manual_seed(1)
    values, shifted = torch.randn(2, 5, 4, generator=generator, dtype=torch.float64)
    valid, shift = torch.ones(5, 4, dtype=torch.bool), torch.randn(5, generator=generator)
    weight = torch.rand(5, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(policy_gain(1e3 * values, weight, valid), policy_gain(values, weight, valid), **EXACT)
    one, other = (alignment_loss(c * shifted, c * values, shift, valid) for c in (1.0, 1e3))
    torch.testing.assert_close(one, other, **EXACT)


def test_only_actions_that_disobey_their_shift_are_charged_and_only_they_learn() -> None:
    values = torch.tensor([[1.0, 1.0], [1.0, 1.0]], requires_grad=True)
    shifted = torch.tensor([[3.0, 0.5], [0.0, 1.5]], requires_grad=True)
    loss = alignment_loss(shifted, values, torch.tensor([0.3, -0.2]), torch.ones(2, 2, dtype=torch.bool))
    # Asked for more: 0.5 is worth 0.5 less. Asked for less: 1.5 is worth 0.5 more. Mean over four steps, mean |Q| is 1.
    assert float(loss.detach()) == 0.25
    loss.backward()
    assert values.grad is None
    assert shifted.grad is not None and shifted.grad.tolist() == [[0.0, -0.25], [0.0, 0.25]]
