"""The arithmetic of Q-learning against plain loops and numbers worked out by hand; rlax stands in ``rlax_twins.py``."""

import math

import pytest
import torch
from torch import Tensor

from rltransformers.algorithms.dqn import (
    SegmentSteps,
    double_q_values,
    dqn_loss,
    huber,
    rescale,
    segment_priorities,
    unrescale,
)
from rltransformers.algorithms.returns import n_step_returns

B, L, A = 3, 7, 4


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def steps_of(n_step: int, ends: tuple[int, ...] = (), stops: tuple[int, ...] = ()) -> SegmentSteps:
    """Steps whose episodes terminate at rows ``ends`` and have last observations at rows ``stops``."""
    length = L + n_step
    terminal, counts = torch.zeros(B, length, dtype=torch.bool), torch.ones(B, length, dtype=torch.bool)
    terminal[:, list(ends)] = True
    counts[:, list(stops)] = False
    actions = torch.randint(A, (B, length), generator=torch.Generator().manual_seed(1))
    return SegmentSteps(actions, numbers(B, length, seed=2), terminal, counts, torch.tensor([1.0, 0.5, 0.25]).double())


# Loops and hands


@pytest.mark.parametrize("n_step", [1, 2, 3, 5])
def test_returns_stop_where_episodes_do(n_step: int) -> None:
    """Row by row: the sum ends with the reward that terminates, and with the value of a last observation."""
    steps = steps_of(n_step, ends=(1, 6), stops=(4, L))
    values = numbers(B, L + n_step, seed=5)
    discounts = 0.9 * (~steps.terminal).double()
    found = n_step_returns(steps.rewards, discounts, values, ~steps.counts, n_step)
    assert found.shape == (B, L)
    for row in range(B):
        for t in range(L):
            total, weight = 0.0, 1.0
            for k in range(t, t + n_step + 1):
                if k == t + n_step or not steps.counts[row, k]:
                    total += weight * float(values[row, k])
                    break
                total += weight * float(steps.rewards[row, k])
                weight *= 0.9
                if steps.terminal[row, k]:
                    break
            assert math.isclose(float(found[row, t]), total, rel_tol=1e-12)


def test_returns_worked_out_by_hand() -> None:
    rewards = torch.tensor([[1.0, 2.0, 4.0, 0.0, 8.0]])
    values = torch.tensor([[10.0, 20.0, 30.0, 40.0, 50.0]])
    on = torch.full((1, 5), 0.5)
    nowhere = torch.zeros(1, 5, dtype=torch.bool)
    two = n_step_returns(rewards, on, values, nowhere, 2)
    assert two.tolist() == [[1 + 1 + 7.5, 2 + 2 + 10, 4 + 0 + 12.5]]
    ends = torch.tensor([[0.5, 0.0, 0.5, 0.5, 0.5]])
    assert n_step_returns(rewards, ends, values, nowhere, 2).tolist() == [[2.0, 2.0, 16.5]]
    stops = torch.tensor([[False, False, True, False, False]])
    assert n_step_returns(rewards, on, values, stops, 2)[0, :2].tolist() == [1 + 1 + 7.5, 2 + 15]


def test_the_target_network_values_the_action_that_the_network_prefers() -> None:
    q, target_q = torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([[9.0, 5.0, 7.0]])
    assert double_q_values(q, target_q).tolist() == [5.0]


def test_rescaling_and_back_is_the_identity() -> None:
    x = torch.cat([torch.logspace(-6, 6, 50), torch.zeros(1)])
    x = torch.cat([x, -x])
    torch.testing.assert_close(unrescale(rescale(x.double())), x.double(), atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(unrescale(rescale(x)), x, atol=0.0, rtol=1e-6)  # some roundings of float32
    small = torch.tensor([1e-9, 1e-7, -1e-6, 1e-3])
    torch.testing.assert_close(rescale(small), small * (0.5 + 1e-3) - small * small.abs() / 8, atol=0.0, rtol=1e-6)
    assert float(rescale(torch.tensor(3.0))) == pytest.approx(1.003)
    assert float(rescale(torch.tensor(-8.0))) == pytest.approx(-2.008)


def test_the_gradient_of_the_huber_loss_is_the_clipped_error() -> None:
    errors = torch.tensor([-3.0, -1.0, -0.25, 0.0, 0.5, 2.0], requires_grad=True)
    loss = huber(errors)
    assert loss.tolist() == [2.5, 0.5, 0.03125, 0.0, 0.125, 1.5]
    loss.sum().backward()
    assert errors.grad is not None and errors.grad.tolist() == [-1.0, -1.0, -0.25, 0.0, 0.5, 1.0]


def test_the_priority_of_a_segment_mixes_its_largest_and_its_mean_error() -> None:
    errors = torch.tensor([[1.0, -4.0, 1.0, 99.0], [0.0, 0.0, 0.0, 0.0]])
    counts = torch.tensor([[True, True, True, False], [False, False, False, False]])
    torch.testing.assert_close(segment_priorities(errors, counts), torch.tensor([0.9 * 4.0 + 0.1 * 2.0, 0.0]))


def test_the_loss_is_a_weighted_mean_over_steps_that_count() -> None:
    steps = steps_of(2, stops=(3,))
    q = numbers(B, L + 2, A, seed=3).requires_grad_()
    targets = numbers(B, L, seed=6)
    loss = dqn_loss(q, targets, steps)
    total = 0.0
    for row in range(B):
        for t in (0, 1, 2, 4, 5, 6):
            error = float(targets[row, t] - q[row, t, steps.actions[row, t]].detach())
            total += float(steps.weights[row]) * (error**2 / 2 if abs(error) <= 1 else abs(error) - 0.5)
    assert float(loss.total.detach()) == pytest.approx(total / (6 * B))
    loss.total.backward()
    assert q.grad is not None
    touched = (q.grad != 0).any(-1)
    assert not touched[:, 3].any() and not touched[:, L:].any()
    assert not loss.td_loss.requires_grad and not loss.priorities.requires_grad
