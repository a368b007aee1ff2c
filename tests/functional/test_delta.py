"""The delta rule in chunks against a loop over tokens."""

import pytest
import torch
from torch import Tensor

from rltransformers.functional.call import Tokens
from rltransformers.functional.delta import delta_products, delta_sums, solve_unit_lower
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


def stream(time: int, streams: int = 1) -> Tokens:
    """One episode per stream from its first token on."""
    return tokens_of(torch.zeros(streams, time, dtype=torch.bool), torch.full((streams,), -1))


def test_without_corrections_the_state_decays_and_nothing_is_added() -> None:
    q, k, v, state, _ = example()
    log_decay = -torch.rand(B, H, T, dtype=torch.float64)
    tokens = tokens_of(torch.zeros(B, T, dtype=torch.bool), BEFORE)
    out, after = delta_sums(q, k, v, torch.zeros_like(log_decay), state, tokens, 5, log_decay)
    rest = log_decay.cumsum(-1).exp()
    torch.testing.assert_close(out, rest[..., None] * (q @ state))
    torch.testing.assert_close(after, rest[:, :, -1, None, None] * state)


def test_the_latest_value_of_an_orthonormal_key_is_read_back_and_the_others_stay() -> None:
    written = torch.tensor([0, 1, 2, 1, 3, 1, 0, 1])  # the key of every token
    values = torch.randn(1, 1, len(written), V, dtype=torch.float64)
    directions = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64)).Q
    keys, ones = directions[written][None, None], torch.ones(1, 1, len(written), dtype=torch.float64)
    empty = torch.zeros(1, 1, 5, V, dtype=torch.float64)
    _, memory = delta_sums(keys, keys, values, ones, empty, stream(len(written)), 3)
    latest = [values[0, 0, place] for place in (6, 7, 2, 4)]  # of keys 0 to 3
    torch.testing.assert_close(directions @ memory[0, 0], torch.stack([*latest, torch.zeros_like(latest[0])]))


def test_a_rate_of_2_changes_the_sign_of_what_is_read_under_a_key_and_counts_parity() -> None:
    bits = torch.tensor([1, 0, 1, 1, 0, 1, 0, 0, 1])
    key = torch.nn.functional.normalize(torch.randn(4, dtype=torch.float64), dim=0)
    keys = key.expand(1, 1, len(bits), 4)
    state = torch.outer(key, torch.ones(V, dtype=torch.float64))[None, None]
    tokens = tokens_of(torch.zeros(1, len(bits), dtype=torch.bool), torch.tensor([3]))
    values = torch.zeros(1, 1, len(bits), V, dtype=torch.float64)
    out, _ = delta_sums(keys, keys, values, 2.0 * bits[None, None], state, tokens, 4)
    torch.testing.assert_close(out[0, 0, :, 0], (1.0 - 2 * (bits.cumsum(0) % 2)).double())


def test_repeated_tokens_are_those_of_a_stream_with_so_many_tokens_for_each() -> None:
    *_, reset = example()
    ours = tokens_of(reset, BEFORE, torch.tensor([0, 7, 12])).repeated(3)
    starts = torch.zeros(B, T, 3, dtype=torch.bool)
    starts[..., 0] = reset
    expected = tokens_of(starts.flatten(1), 3 * BEFORE + 2, torch.tensor([0, 21, 36]))
    assert torch.equal(ours.p, expected.p) and torch.equal(ours.live, expected.live)
    assert torch.equal(ours.valid(), expected.valid())
    assert torch.equal(ours.last_position(), expected.last_position())


def test_two_corrections_can_swap_two_values_which_one_cannot() -> None:
    """Two reflections of one token are a rotation: keys at half the angle turn what is stored by a quarter."""
    half = torch.tensor(torch.pi / 4, dtype=torch.float64)
    keys = torch.stack([torch.tensor([0.0, 1.0], dtype=torch.float64), torch.stack([-half.sin(), half.cos()])])
    state = torch.eye(2, dtype=torch.float64)[None, None]
    tokens = tokens_of(torch.zeros(1, 1, dtype=torch.bool), torch.tensor([0]))
    twice = torch.full((1, 1, 1, 2), 2.0, dtype=torch.float64)
    nothing = torch.zeros(1, 1, 1, 2, 2, dtype=torch.float64)
    read = torch.zeros(1, 1, 1, 2, dtype=torch.float64)
    _, turned = delta_products(read, keys[None, None, None], nothing, twice, state, tokens)
    torch.testing.assert_close(turned[0, 0].abs(), torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64))
    torch.testing.assert_close(torch.linalg.det(turned[0, 0]), torch.tensor(1.0, dtype=torch.float64))
