"""Attention over sums of the past against sums that are formed token by token."""

import pytest
import torch

from rltransformers.functional.prefixes import LARGEST_EXPONENT, bounded_exp, episode_totals, prefix_attention
from tests.functional.test_recurrences import B, H, T, example, tokens_of

BEFORE, SUMS = torch.tensor([6, 2, 4]), 6


@pytest.mark.parametrize("divided", [False, True])
def test_prefix_attention_equals_a_loop_over_tokens(divided: bool) -> None:
    q, k, v, _, reset = example()
    generator = torch.Generator().manual_seed(1)
    of_keys, of_values = (torch.rand(B, H, T, SUMS, generator=generator, dtype=torch.float64) for _ in range(2))
    state = {
        "projected_keys": torch.randn(B, H, 4, SUMS, generator=generator, dtype=torch.float64),
        "projected_values": torch.randn(B, H, SUMS, 5, generator=generator, dtype=torch.float64),
    }
    before = torch.rand(B, H, SUMS, generator=generator, dtype=torch.float64)
    tokens = tokens_of(reset, BEFORE)
    total, last = episode_totals(of_keys, before, tokens)
    found, after = prefix_attention(q, k, v, of_keys, of_values, state, tokens, total if divided else None)
    for b in range(B):
        keys, values, summed = state["projected_keys"][b], state["projected_values"][b], before[b]
        for t in range(T):
            if reset[b, t]:
                keys, values, summed = (torch.zeros_like(each) for each in (keys, values, summed))
            keys = keys + k[b, :, t, :, None] * of_keys[b, :, t, None]
            values = values + of_values[b, :, t, :, None] * v[b, :, t, None]
            summed = summed + of_keys[b, :, t]
            by = summed if divided else torch.ones_like(summed)
            weights = ((q[b, :, t, :, None] * keys).sum(1) / by).softmax(-1)
            torch.testing.assert_close(found[b, :, t], (weights[..., None] * values / by[..., None]).sum(1))
            torch.testing.assert_close(total[b, :, t], summed)
        torch.testing.assert_close(after["projected_keys"][b], keys)
        torch.testing.assert_close(after["projected_values"][b], values)
        torch.testing.assert_close(last[b], summed)


def test_weights_and_their_squares_stay_inside_float32() -> None:
    weights = bounded_exp(torch.tensor([-1e6, -LARGEST_EXPONENT, 0.0, 1e6], dtype=torch.bfloat16))
    assert weights.dtype == torch.float32
    assert weights[0] == weights[1] and weights[2] == 1
    assert weights.square().isfinite().all() and (1 / weights.square()).isfinite().all()
