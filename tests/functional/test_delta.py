"""The delta rule in chunks against a loop over tokens."""

import pytest
import torch
from torch import Tensor

from rltransformers.functional.delta import delta_sums, solve_unit_lower
from tests.functional.test_recurrences import B, H, T, V, example, tokens_of

BEFORE = torch.tensor([6, 2, 4])


def by_token(
    q: Tensor, k: Tensor, v: Tensor, rate: Tensor, state: Tensor, reset: Tensor, length: list[int]
) -> tuple[Tensor, Tensor]:
    """The recurrence as written: forget at a reset, correct, read."""
    out, final = torch.zeros_like(v), []
    for b in range(len(v)):
        memory = state[b]
        for t in range(length[b]):
            if reset[b, t]:
                memory = torch.zeros_like(memory)
            held = (k[b, :, t, :, None] * memory).sum(1)
            change = rate[b, :, t, None] * (v[b, :, t] - held)
            memory = memory + k[b, :, t, :, None] * change[:, None]
            out[b, :, t] = (q[b, :, t, :, None] * memory).sum(1)
        final.append(memory)
    return out, torch.stack(final)


@pytest.mark.parametrize("chunk", [1, 2, 5, 13, 64])
@pytest.mark.parametrize("length", [[13, 13, 13], [0, 7, 12]], ids=str)
def test_values_gradients_and_state_equal_a_loop_over_tokens(chunk: int, length: list[int]) -> None:
    q, k, v, state, reset = example()
    rate = torch.rand(B, H, T, dtype=torch.float64)
    k = k / k.norm(dim=-1, keepdim=True)
    inputs = [each.requires_grad_() for each in (q, k, v, rate, state)]
    tokens = tokens_of(reset, BEFORE, torch.tensor(length))
    weight = torch.randn(B, H, T, V, dtype=torch.float64)
    for b, count in enumerate(length):
        weight[b, :, count:] = 0  # what padding reads is nobody's
    results = []
    found = delta_sums(q, k, v, rate, state, tokens, chunk), by_token(q, k, v, rate, state, reset, length)
    for out, after in found:
        grads = torch.autograd.grad((out * weight).sum() + after.square().sum(), inputs)
        results.append([out * weight, after, *grads])
    torch.testing.assert_close(results[0], results[1])


def test_no_gradient_crosses_an_episode_border() -> None:
    q, k, v, state, reset = example()
    k = k.requires_grad_()
    rate = torch.rand(B, H, T, dtype=torch.float64)
    out, after = delta_sums(q, k, v, rate, state, tokens_of(reset, BEFORE), 5)
    (seen,) = torch.autograd.grad(out[1, :, 9:].sum() + after[1].sum(), k)
    assert seen[1, :, :9].eq(0).all() and seen[[0, 2]].eq(0).all()
    assert seen[1, :, 9:].ne(0).all()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 17, 64])
def test_both_ways_to_solve_a_system_survive_keys_that_repeat(size: int) -> None:
    """Equal keys at full rate: powers of the matrix grow as binomials, so that a series of them would be useless."""
    lower = torch.ones(2, size, size).tril(-1)
    right = torch.randn(2, size, 3)
    solution = solve_unit_lower(lower, right)
    torch.testing.assert_close((lower + torch.eye(size)) @ solution, right, rtol=1e-4, atol=1e-4)  # float32
