"""Facts about retention that the contract does not state: how long heads keep, what turns, and for how long exactly."""

from typing import Literal

import pytest
import torch

from rltransformers.functional.call import Call, Tokens
from rltransformers.functional.recurrences import causal_sums
from rltransformers.mixers import retention
from rltransformers.mixers.interface import Dims
from tests.mixers.episodes import DIMS, T, fresh, heads_of, one_episode, run

pytestmark = pytest.mark.usefixtures("double")


def test_without_decay_and_turns_the_sums_are_those_of_linear_attention() -> None:
    mixer, x = retention.Retention(DIMS, retention.Options(decay="learned", base=None)), torch.randn(2, T, 12)
    assert mixer.logit is not None
    mixer.logit.data.fill_(1e4)
    q, k, v = heads_of(mixer, x)
    sums, _ = causal_sums(q / 3**0.5, k, v, torch.zeros(2, 4, 3, 5), one_episode(T, 2))
    torch.testing.assert_close(run(mixer, x), mixer.out(sums, x))


@pytest.mark.parametrize("decay", ["fixed", "learned"])
def test_heads_forget_a_32nd_a_64th_and_so_on_with_every_token(decay: Literal["fixed", "learned"]) -> None:
    mixer = retention.Retention(DIMS, retention.Options(decay=decay, base=None))
    x = torch.zeros(1, 4, 12)
    x[:, 0] = torch.randn(12)
    after = [mixer(x[:, :n], fresh(mixer), Call(one_episode(n))).state["sum"] for n in (1, 4)]
    kept = torch.tensor([31 / 32, 63 / 64, 127 / 128, 255 / 256]) ** 3
    torch.testing.assert_close(after[1], after[0] * kept[:, None, None])


def test_a_token_weighs_by_its_distance() -> None:
    mixer, x = retention.Retention(DIMS, retention.Options()), torch.zeros(1, 4, 12)
    x[:, 0] = torch.randn(12)
    _, k, v = heads_of(mixer, x)
    after = mixer(x[:, :3], fresh(mixer), Call(one_episode(3))).state["sum"]
    turn = torch.tensor(3.0)  # radians of the one pair of channels, as the fourth token sees the first
    a, b, rest = k[0, :, 0].unbind(-1)
    key = torch.stack([a * turn.cos() + b * turn.sin(), b * turn.cos() - a * turn.sin(), rest], -1)
    kept = torch.tensor([31 / 32, 63 / 64, 127 / 128, 255 / 256]) ** 2
    torch.testing.assert_close(after[0], kept[:, None, None] * key[:, :, None] * v[0, :, 0, None])


def test_late_in_an_episode_turns_are_as_exact_as_at_its_start() -> None:
    torch.set_default_dtype(torch.float32)
    dims = Dims(width=12, heads=4, kv_heads=2, head_dim=8, value_dim=5, memory=1)
    mixer, x = retention.Retention(dims, retention.Options()), torch.randn(1, T, 12)
    state = mixer(x[:, :1], fresh(mixer), Call(one_episode(1))).state
    p = 10_000_000 + torch.arange(1, T)[None]
    late = Tokens(p, p, torch.ones_like(p, dtype=torch.bool), p[:, 0] - 1)
    torch.testing.assert_close(mixer(x[:, 1:], state, Call(late)).out, run(mixer, x)[:, 1:])
