"""How queries meet keys: numbers and laws of single scores."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rltransformers import laws
from rltransformers.attention.roles import Heads, QueryKeyNorm, Score
from rltransformers.attention.scores.additive import Additive
from rltransformers.attention.scores.hard_gaussian import HardGaussian
from rltransformers.attention.scores.hopfield import Hopfield
from rltransformers.attention.scores.lowrank_band import LowRankBand
from rltransformers.attention.scores.synthesizer_random import RandomSynthesizer
from rltransformers.backbone import PLAIN, BackboneConfig
from rltransformers.functional.keys import Rows
from rltransformers.laws import Case, perturbed
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


def additive_scores(score: Additive, queries: Tensor, keys: Tensor) -> Tensor:
    """Scores of heads, queries and keys, all of them tokens after the projection."""
    query, _ = score.rows(queries[None], queries[None])
    k, v = score.split(score.key_rows(keys[None]))
    return score.content(score.split_queries(query), Heads(k, v, Rows()))[0]


def test_additive_scores_are_those_of_query_and_key_side_by_side() -> None:
    """Velickovic et al. 2018, equation 3 as printed: one vector times both, one below the other."""
    dims = Dims(width=14, heads=2, kv_heads=2, head_dim=5, value_dim=5, memory=6)
    score, queries, keys = Additive(dims, 0.2), torch.randn(3, 10), torch.randn(4, 10)
    found = additive_scores(score, queries, keys)
    for head in range(2):
        part, vector = slice(5 * head, 5 * head + 5), torch.cat([score.of_query[head], score.of_key[head]])
        for t in range(3):
            for s in range(4):
                total = vector @ torch.cat([queries[t, part], keys[s, part]])
                torch.testing.assert_close(found[head, t, s], total if total > 0 else 0.2 * total)


def test_additive_scores_without_a_kink_order_keys_alike_for_all_queries() -> None:
    dims = Dims(width=14, heads=2, kv_heads=2, head_dim=5, value_dim=5, memory=6)
    queries, keys = torch.randn(3, 10), torch.randn(4, 10)
    weights = additive_scores(Additive(dims, 1.0), queries, keys).softmax(-1)
    torch.testing.assert_close(weights, weights[:, :1].expand_as(weights))
    bent = additive_scores(Additive(dims, 0.2), queries, keys).softmax(-1)
    assert (bent - bent[:, :1]).abs().max() > 1e-3


def test_hard_gaussian_attention_is_a_convolution_with_fixed_taps() -> None:
    """Weights 1 and 0.6065 for distances of no and of one deviation, 0.1353 for two."""
    score = HardGaussian(DIMS, 1.0)
    found = score.of_distances(torch.arange(4), torch.zeros(1)).exp()
    torch.testing.assert_close(found[:, 0], torch.tensor([1, 0.60653, 0.13534, 0.01111]), rtol=0, atol=1e-5)
    torch.testing.assert_close(found[:, 1], torch.tensor([0.60653, 1, 0.60653, 0.13534]), rtol=0, atol=1e-5)


def test_frozen_logits_are_drawn_from_the_seed_and_the_layer_and_stay() -> None:
    def drawn(seed: int, layer: int) -> RandomSynthesizer:
        return RandomSynthesizer(replace(DIMS, layer=layer), 9, None, False, seed)

    one = drawn(3, 1)
    assert not list(one.parameters())
    assert torch.equal(one.table(), drawn(3, 1).table())
    assert not any(torch.equal(one.table(), other.table()) for other in (drawn(3, 2), drawn(4, 1)))


@pytest.mark.parametrize("rank", [None, 1, 16, 256])
def test_random_logits_begin_with_variance_one_whatever_their_rank(rank: int | None) -> None:
    table = RandomSynthesizer(replace(DIMS, heads=64), 64, rank, True, 0).table()
    # of rank 1 all numbers share 64 + 64 draws, and the estimate has a deviation of about 0.18
    assert float(table.detach().std()) == pytest.approx(1.0, abs=0.4)


def test_logits_of_narrow_heads_are_of_low_rank() -> None:
    score = LowRankBand(replace(DIMS, value_dim=7), 1, 2)
    rows = torch.randn(1, 11, score.projected)
    query, keys = score.rows(rows, rows)
    q, (k, v) = score.split_queries(query), score.split(keys)
    narrow, wide = score.content(q, Heads(k, v, Rows()))[0]
    assert torch.linalg.matrix_rank(narrow) == 2
    assert torch.linalg.matrix_rank(wide) == 7
    torch.testing.assert_close(narrow, query[0, :, :2] @ keys[0, :, :2].T / math.sqrt(2))


@pytest.mark.parametrize(
    "settings",
    [
        {"mixer": ["softmax", "additive"], "position": "trxl"},
        {"mixer": ["synthesizer_dense", "hopfield"], "position": "rope", "head_mixing": "collaborative"},
        {
            "mixer": ["lowrank_band", "softmax"],
            "position": "trxl",
            "head_mixing": {"name": "collaborative", "width": 8},
        },
    ],
    ids=str,
)
def test_positions_and_heads_act_in_the_layers_whose_score_has_what_they_need(settings: dict[str, Any]) -> None:
    sizes = {"width": 12, "heads": 3, "layers": 2, "memory": 5, "ff_width": 7}
    case = Case.of(perturbed(BackboneConfig(**{**PLAIN, **sizes, **settings})), [[3], [0]], time=9)
    laws.split_invariance(case, [[1] * 9, [2, 7]])
    for index, mixer in enumerate(settings["mixer"]):
        names = dict(case.backbone.get_submodule(f"layers.{index}.mixing.mixer").named_parameters())
        assert any(name.startswith("position.") for name in names) == (
            settings["position"] == "trxl" and mixer != "additive"
        )
        assert ("score.mixing" in names or "score.meets.mixing" in names) == (
            "head_mixing" in settings and mixer in ("softmax", "hopfield")
        )
    assert case.backbone.config.numbers()[0] == sum(value.numel() for value in case.backbone.parameters())


def test_a_frozen_read_compares_normalized_queries_and_keys() -> None:
    score = Score(Dims(width=8, heads=2, kv_heads=2, head_dim=4, value_dim=4, memory=5))
    score.norm = QueryKeyNorm(4)
    weight, h, rows = torch.randn(24, 8), torch.randn(1, 3, 8), torch.randn(1, 5, 8)
    longer = torch.cat([1e4 * weight[:16], weight[16:]])  # of queries and keys

    def read(weight: Tensor) -> Tensor:
        out: Tensor = score(weight, torch.zeros(24), h, rows, torch.ones(1, 5).bool(), lambda heads: heads)
        return out

    torch.testing.assert_close(read(longer), read(weight), rtol=1e-3, atol=1e-4)  # eps is all that differs
