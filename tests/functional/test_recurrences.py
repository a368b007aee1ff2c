"""Chunked sums over an episode against a loop over tokens."""

import pytest
import torch
from torch import Tensor

from rltransformers.functional.call import Tokens, episode_positions
from rltransformers.functional.recurrences import causal_sums, exponential_attention, kernel_attention

B, H, T, F, V = 3, 2, 13, 4, 5


def tokens_of(reset: Tensor, before: Tensor, length: Tensor | None = None) -> Tokens:
    p = episode_positions(before, reset)
    return Tokens(p, p, reset.cumsum(1) == 0, before, length)


def example(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.rand(B, H, T, F, generator=generator, dtype=torch.float64) for _ in range(2))
    v = torch.randn(B, H, T, V, generator=generator, dtype=torch.float64)
    state = torch.randn(B, H, F, V, generator=generator, dtype=torch.float64)
    reset = torch.zeros(B, T, dtype=torch.bool)
    reset[0, 0] = reset[1, 3] = reset[1, 4] = reset[1, 9] = True  # row 2 lives on from before the call
    return q, k, v, state, reset


def by_token(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, reset: Tensor, length: list[int] | None = None
) -> tuple[Tensor, Tensor]:
    """The recurrence as written: forget at a reset, add, read."""
    out, final = torch.zeros_like(v), []
    for b in range(len(v)):
        memory = state[b]
        for t in range(v.shape[2] if length is None else length[b]):
            if reset[b, t]:
                memory = torch.zeros_like(memory)
            memory = memory + k[b, :, t, :, None] * v[b, :, t, None, :]
            out[b, :, t] = (q[b, :, t, :, None] * memory).sum(1)
        final.append(memory)
    return out, torch.stack(final)


@pytest.mark.parametrize("chunk", [1, 2, 5, 13, 64])
def test_sums_equal_a_loop_over_tokens_in_value_gradient_and_state(chunk: int) -> None:
    q, k, v, state, reset = example()
    inputs = [each.requires_grad_() for each in (q, k, v, state)]
    before = torch.tensor([6, 2, 4])
    weight = torch.randn(B, H, T, V, dtype=torch.float64)
    results = []
    for out, after in (causal_sums(q, k, v, state, tokens_of(reset, before), chunk), by_token(q, k, v, state, reset)):
        grads = torch.autograd.grad((out * weight).sum() + after.square().sum(), inputs)
        results.append([out, after, *grads])
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize("chunk", [3, 4, 64])
def test_padding_changes_neither_outputs_nor_state(chunk: int) -> None:
    q, k, v, state, reset = example()
    length = [0, 7, 12]
    reset[2, 12] = True  # inside the padding: must not clear the state
    padded = tokens_of(reset, torch.tensor([6, 2, 4]), torch.tensor(length))
    out, after = causal_sums(q, k, v, state, padded, chunk)
    expected, expected_after = by_token(q, k, v, state, reset, length)
    for b in range(B):
        torch.testing.assert_close(out[b, :, : length[b]], expected[b, :, : length[b]])
    torch.testing.assert_close(after, expected_after)
    assert torch.equal(after[0], state[0])


def test_no_gradient_crosses_an_episode_border() -> None:
    q, k, v, state, reset = example()
    state, v = state.requires_grad_(), v.requires_grad_()
    out, after = causal_sums(q, k, v, state, tokens_of(reset, torch.tensor([6, 2, 4])), 5)
    seen_by_out = torch.autograd.grad(out[1, :, 9:].sum(), (v, state), retain_graph=True)
    assert seen_by_out[0][1, :, :9].eq(0).all() and seen_by_out[1].eq(0).all()
    seen_by_state = torch.autograd.grad(after[1].sum(), (v, state))
    assert seen_by_state[0][1, :, :9].eq(0).all() and seen_by_state[1].eq(0).all()
    assert seen_by_state[0][1, :, 9:].ne(0).all()


def test_weighted_mean_of_constant_values_is_the_constant_and_ignores_the_scale_of_a_query() -> None:
    q, k, v, _, reset = example()
    fresh = {"sum": v.new_zeros(B, H, F, V), "norm": v.new_zeros(B, H, F)}
    tokens = tokens_of(reset, torch.full((B,), -1))
    constant = torch.full_like(v, 3.0)
    torch.testing.assert_close(kernel_attention(q, k, constant, fresh, tokens)[0], constant)
    scale = torch.rand(B, H, T, 1, dtype=torch.float64) + 0.1
    torch.testing.assert_close(*(kernel_attention(each, k, v, fresh, tokens)[0] for each in (q, q * scale)))


def test_shared_key_heads_equal_repeated_ones() -> None:
    q, k, v, _, reset = example()
    fresh = {"sum": v.new_zeros(B, H, F, V), "norm": v.new_zeros(B, H, F)}
    tokens = tokens_of(reset, torch.full((B,), -1))
    shared = kernel_attention(q, k[:, :1], v[:, :1], fresh, tokens)
    repeated = kernel_attention(q, k[:, [0, 0]], v[:, [0, 0]], fresh, tokens)
    torch.testing.assert_close(shared, repeated)


def test_sums_of_bfloat16_inputs_are_kept_in_float32_under_autocast() -> None:
    # 300 ones: bfloat16 cannot count past 256.
    ones = torch.ones(1, 1, 300, 1, dtype=torch.bfloat16)
    p = torch.arange(300)[None]
    tokens = Tokens(p, p, torch.ones(1, 300, dtype=torch.bool), torch.tensor([-1]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, state = causal_sums(ones, ones, ones, ones.new_zeros(1, 1, 1, 1), tokens)
    assert out.dtype == torch.float32 and out[0, 0, -1].item() == 300 and state.item() == 300


def decayed_by_token(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, log_decay: Tensor, reset: Tensor, length: list[int]
) -> tuple[Tensor, Tensor]:
    """The same recurrence with a factor before every addition."""
    out, final = torch.zeros_like(v), []
    for b in range(len(v)):
        memory = state[b]
        for t in range(length[b]):
            if reset[b, t]:
                memory = torch.zeros_like(memory)
            memory = log_decay[b, :, t, None, None].exp() * memory + k[b, :, t, :, None] * v[b, :, t, None, :]
            out[b, :, t] = (q[b, :, t, :, None] * memory).sum(1)
        final.append(memory)
    return out, torch.stack(final)


@pytest.mark.parametrize("chunk", [1, 2, 5, 13, 64])
@pytest.mark.parametrize("length", [[13, 13, 13], [0, 7, 12]], ids=str)
def test_decayed_sums_equal_a_loop_in_value_gradient_and_state(chunk: int, length: list[int]) -> None:
    q, k, v, state, reset = example()
    log_decay = -3 * torch.rand(B, H, T, dtype=torch.float64)
    inputs = [each.requires_grad_() for each in (q, k, v, state, log_decay)]
    tokens = tokens_of(reset, torch.tensor([6, 2, 4]), torch.tensor(length))
    weight = torch.randn(B, H, T, V, dtype=torch.float64)
    for b, count in enumerate(length):
        weight[b, :, count:] = 0  # what padding reads is nobody's
    found = causal_sums(q, k, v, state, tokens, chunk, log_decay)
    expected = decayed_by_token(q, k, v, state, log_decay, reset, length)
    results = []
    for out, after in (found, expected):
        grads = torch.autograd.grad((out * weight).sum() + after.square().sum(), inputs)
        results.append([out * weight, after, *grads])
    torch.testing.assert_close(results[0], results[1])


def test_no_gradient_of_a_decay_crosses_an_episode_border() -> None:
    q, k, v, state, reset = example()
    log_decay = (-torch.rand(B, H, T, dtype=torch.float64)).requires_grad_()
    out, after = causal_sums(q, k, v, state, tokens_of(reset, torch.tensor([6, 2, 4])), 5, log_decay)
    (seen,) = torch.autograd.grad(out[1, :, 9:].sum() + after[1].sum(), log_decay)
    assert seen[1, :, :10].eq(0).all()  # the decay of the first token of an episode has nothing to act on
    assert seen[1, :, 10:].ne(0).all()


@pytest.mark.parametrize("size", [80.0, -80.0])
def test_exponential_gates_of_any_size_read_a_mean_or_next_to_nothing(size: float) -> None:
    """Equal large inputs cancel: what is read is the mean. Small ones stay below the 1 in the denominator."""
    q, k, v, _, _ = (x.float() for x in example())
    tokens = tokens_of(torch.zeros(B, T, dtype=torch.bool), torch.full((B,), -1))
    fresh = {"sum": torch.zeros(B, H, F, V), "norm": torch.zeros(B, H, F), "max": torch.zeros(B, H)}
    gate, decay = torch.full((B, H, T), size), torch.zeros(B, H, T)
    ones = torch.ones_like(k)
    out, after = exponential_attention(q, ones, v, gate, decay, fresh, tokens, 5)
    if size > 0:
        torch.testing.assert_close(out, v.cumsum(2) / torch.arange(1, T + 1)[:, None], rtol=1e-4, atol=1e-5)
        assert after["max"].eq(size).all()
        opposite, _ = exponential_attention(-q, ones, v, gate, decay, fresh, tokens, 5)
        assert torch.equal(opposite, -out)  # the size of the norm is what divides, not its sign
    else:
        assert out.isfinite().all() and out.abs().max() < 1e-30 and after["max"].eq(0).all()
