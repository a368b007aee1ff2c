"""How queries meet keys: numbers and laws of single scores."""

import itertools
import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from rltransformers.attention.roles import Heads, Score
from rltransformers.attention.scores.hopfield import Hopfield
from rltransformers.functional.keys import Rows
from rltransformers.mixers.interface import Dims

DIMS = Dims(width=14, heads=2, kv_heads=2, head_dim=7, value_dim=5, memory=6)


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


def states(xi: Tensor, keys: Tensor, beta: float, updates: int) -> Tensor:
    """State patterns of one head after updates."""
    score = Hopfield(DIMS, Score(DIMS), updates, beta, False)
    group = Heads(keys[None, None], keys[None, None], Rows())
    every = torch.ones(1, 1, 1, len(keys), dtype=torch.bool)
    return score.settled(xi[None, None], [group], lambda query: score.content(query, group), every)[0, 0]


def test_the_energy_of_a_state_pattern_falls_with_every_update_and_is_never_negative() -> None:
    """Ramsauer et al. 2020, equation 2 and theorem 1."""
    keys, xi, beta = torch.randn(6, 7), torch.randn(11, 7), 0.8
    largest = keys.square().sum(-1).max()

    def energy(xi: Tensor) -> Tensor:
        log_sum = torch.logsumexp(beta * xi @ keys.T, -1) / beta
        return -log_sum + xi.square().sum(-1) / 2 + math.log(len(keys)) / beta + largest / 2

    found = [energy(states(xi, keys, beta, updates)) for updates in range(5)]
    assert all((after <= before + 1e-12).all() for before, after in itertools.pairwise(found))
    assert (found[-1] >= 0).all() and (found[0] > found[1] + 1e-3).any()


def test_one_update_finds_the_nearest_of_patterns_that_lie_apart() -> None:
    keys = 3 * torch.eye(7)[:5]
    noisy = keys + 0.3 * torch.randn(5, 7)
    torch.testing.assert_close(states(noisy, keys, 40.0, 1), keys, rtol=1e-9, atol=1e-9)


def test_a_state_pattern_without_temperature_becomes_the_mean_of_the_keys() -> None:
    keys = torch.randn(6, 7)
    torch.testing.assert_close(states(torch.randn(3, 7), keys, 1e-9, 1), keys.mean(0).expand(3, -1), rtol=0, atol=1e-7)
