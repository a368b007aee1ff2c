"""Every test of this suite checks the shapes in annotations; these tests see that it does."""

import functools

import pytest
import torch
from beartype.roar import BeartypeDoorHintViolation as WrongShape

from rltransformers.data.rollout import generalized_advantage
from rltransformers.functional.call import Tokens


def advantage_of(next_values: torch.Tensor) -> torch.Tensor:
    rewards, values, ends = torch.ones(2, 3), torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool)
    return generalized_advantage(rewards, values, next_values, ends, 0.9, 0.8)


def test_an_argument_that_would_be_broadcast_is_caught() -> None:
    for _ in range(2):
        assert advantage_of(torch.ones(2, 3)).shape == (2, 3)
        with pytest.raises(WrongShape, match=r"rollout\.generalized_advantage, next_values: "):
            advantage_of(torch.ones(2, 1))


def test_another_dtype_is_caught_by_keyword_too() -> None:
    ones, ends = torch.ones(2, 3), torch.zeros(2, 3, dtype=torch.bool)
    call = functools.partial(generalized_advantage, ones, ones, episode_ends=ends, discount=0.9, trace=0.8)
    assert call(next_values=ones).shape == (2, 3)
    with pytest.raises(WrongShape, match="next_values: "):
        call(next_values=ones.long())


def test_a_field_of_a_record_is_caught() -> None:
    p = torch.zeros(2, 3, dtype=torch.int64)
    with pytest.raises(WrongShape, match="live: "):
        Tokens(p, p, torch.ones(2, 4, dtype=torch.bool), p[:, 0])


def test_a_method_and_its_result_are_caught() -> None:
    p = torch.zeros(2, 3, dtype=torch.int64)
    tokens = Tokens(p, p, p == 0, p[:, 0])
    assert tokens.last_position().shape == (2,)
    object.__setattr__(tokens, "p", p[..., None])
    with pytest.raises(WrongShape, match=r"Tokens\.last_position, return: "):
        tokens.last_position()
