"""A rule leaves keys out by the position of the query; where it says the same as a distance does, so does attention."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from rltransformers import laws
from rltransformers.attention.reach import Pattern, Reach, Rule
from rltransformers.backbone import AXES
from rltransformers.core.spec import Feature, NoOptions, Spec
from rltransformers.laws import Case, perturbed
from rltransformers.mixers.interface import Dims
from tests.attention.rows import config_of

MEMORY = 6


@dataclass(frozen=True)
class Newest(Rule):
    """The newest tokens, a number per head, written by positions in place of distances."""

    counts: tuple[int, ...]

    def allowed(self, i: Tensor, distance: Tensor) -> Tensor:
        j = i - distance
        return j > i - torch.tensor(self.counts)[:, None, None]


@dataclass(frozen=True)
class Odd(Rule):
    """The token itself, and those at odd positions."""

    def allowed(self, i: Tensor, distance: Tensor) -> Tensor:
        return ((i - distance) % 2 == 1) | (distance == 0)


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def pattern_of(monkeypatch: pytest.MonkeyPatch, name: str, reach: Reach) -> str:
    """A pattern with a reach, in the catalogue."""

    def build(dims: Dims, options: NoOptions) -> Reach:
        return reach

    spec = Spec("A99", name, "pattern", "-", "Some keys.", build, offers=(Feature.REACH,))
    monkeypatch.setitem(AXES["pattern"].table, name, spec)
    return name


def equal(one: Any, other: Any, **values: Any) -> None:
    """Two patterns give the same outputs, in segments and token by token."""
    first, second = (perturbed(config_of({"memory": MEMORY, **values, "pattern": each})) for each in (one, other))
    case = Case.of(first)
    case.close(first(case.x, None, case.reset)[0], second(case.x, None, case.reset)[0])
    laws.split_invariance(case)


@pytest.mark.parametrize("values", [{}, {"position": "none"}, {"selection": {"name": "topk", "k": 2}}], ids=str)
def test_a_rule_about_positions_equals_the_same_distances(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = pattern_of(monkeypatch, "newest", Reach(MEMORY + 1, rule=Newest((3,))))
    equal(name, {"name": "band", "window": 3}, **values)


@pytest.mark.parametrize("values", [{}, {"selection": {"name": "routing", "clusters": 2, "window": 9}}], ids=str)
def test_one_rule_may_have_an_answer_per_head(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    name = pattern_of(monkeypatch, "newest", Reach(MEMORY + 1, rule=Newest((3, 1, 7))))
    bands = [{"name": "band", "window": window} for window in (3, 1, 7)]
    equal(name, [bands], **values)
    equal(
        [[name, {"name": "band", "window": 2}, name]], [[bands[0], {"name": "band", "window": 2}, bands[2]]], **values
    )


def test_first_tokens_that_a_rule_leaves_out_of_the_window_are_seen_as_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in the window at odd positions count once."""
    name = pattern_of(monkeypatch, "odd", Reach(MEMORY + 1, sinks=3, rule=Odd()))
    backbone = perturbed(config_of({"layers": 1, "memory": MEMORY, "pattern": name}))
    x = torch.randn(1, 14, backbone.width)
    for query, expected in ((5, {0, 1, 2, 3, 5}), (12, {0, 1, 2, 7, 9, 11, 12})):
        given = x.clone().requires_grad_()
        backbone(given)[0][0, query].square().sum().backward()
        assert given.grad is not None
        assert {j for j in range(14) if given.grad[0, j].abs().sum() > 0} == expected
    equal(name, [[name] * 3])
    laws.causality(Case.of(backbone))
    laws.episode_isolation(Case.of(backbone))


def test_a_pattern_with_a_rule_is_never_dense() -> None:
    assert Pattern((Reach(MEMORY + 1),)).dense == MEMORY + 1
    assert Pattern((Reach(MEMORY + 1, rule=Odd()),)).dense == 0
