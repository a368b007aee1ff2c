"""Scans where they equal something known."""

import torch
from torch import Tensor

from rltransformers.functional.call import Tokens
from rltransformers.functional.scan import complex_scan, running_max, scan
from tests.functional.test_recurrences import tokens_of

T = 37


def one_episode(before: int = -1) -> Tokens:
    return tokens_of(torch.zeros(2, T, dtype=torch.bool), torch.full((2,), before))


def test_without_decay_a_scan_is_a_running_sum_of_the_episode() -> None:
    value = torch.randn(2, T, 3, dtype=torch.float64)
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    stale = torch.full((2, 3), 7.0, dtype=torch.float64)  # of an episode before
    out, after = scan(one, value, stale, one_episode())
    torch.testing.assert_close(out, value.cumsum(1))
    torch.testing.assert_close(after, value.sum(1))


def test_a_state_that_overflowed_ends_with_its_episode() -> None:
    value = torch.randn(2, T, 3)
    out, after = scan(torch.full((1, 1, 1), 2.0), value, torch.full((2, 3), float("inf")), one_episode())
    assert out.isfinite().all() and after.isfinite().all()


def test_a_complex_decay_of_size_1_turns_the_state() -> None:
    angle = torch.tensor([0.1, -0.5, 2.0], dtype=torch.float64)
    state = torch.randn(2, 2, 3, dtype=torch.float64)
    decay, value = torch.stack([angle.cos(), angle.sin()])[None, None], torch.zeros(2, T, 2, 3, dtype=torch.float64)
    out, _ = complex_scan(decay, value, state, one_episode(5))
    turned = torch.complex(state[:, 0], state[:, 1])[:, None] * torch.exp(1j * angle * torch.arange(1, T + 1)[:, None])
    torch.testing.assert_close(out, torch.stack([turned.real, turned.imag], 2))


def test_gradients_of_gradients_are_those_of_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    decay, value = (torch.rand(2, T, 3, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2))

    def outputs(decay: Tensor, value: Tensor) -> Tensor:
        return scan(decay, value, torch.zeros(2, 3, dtype=torch.float64), one_episode(5), 4)[0]

    assert torch.autograd.gradgradcheck(outputs, (decay, value), fast_mode=True)


def test_a_running_maximum_without_decay_is_the_largest_value_of_the_episode_and_0() -> None:
    value = torch.randn(2, T, 3) - 1
    largest, before, last = running_max(torch.zeros_like(value), value, torch.full((2, 3), 9.0), one_episode())
    expected = value.cummax(1).values.clamp(min=0)
    assert torch.equal(largest, expected) and torch.equal(last, expected[:, -1])
    assert torch.equal(before[:, 1:], expected[:, :-1]) and before[:, 0].eq(0).all()
