"""Every pair of mechanisms is accepted or refused as the table written by hand says; what is accepted runs."""

import random
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
import torch

from rltransformers.backbone import PLAIN, BackboneConfig, Record, catalogue
from rltransformers.blocks.reversible import ReversibleLayer
from tests.backbone import laws
from tests.backbone.combinations import MECHANISMS, Name, settings, verdicts
from tests.backbone.laws import Case, perturbed
from tests.backbone.ways_out import mended, other_ways, refusal

VERDICTS = verdicts()
AXIS_PAIRS = list(combinations(MECHANISMS, 2))
ACCEPTED = sorted(sorted(pair) for pair, words in VERDICTS.items() if not words)
REFUSED = sorted(sorted(pair) for pair, words in VERDICTS.items() if words)
SAMPLE = random.Random(3).sample(ACCEPTED, 60)


@pytest.fixture
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_the_table_knows_every_mechanism() -> None:
    known = {(axis, name) for axis, table in MECHANISMS.items() if axis != "setting" for name in table}
    assert known == {(axis, spec.name) for axis, specs in catalogue().items() for spec in specs}


@pytest.mark.parametrize(("left", "right"), AXIS_PAIRS)
def test_a_pair_is_accepted_or_refused_for_the_reason_in_the_table(left: str, right: str) -> None:
    pairs = {pair: words for pair, words in VERDICTS.items() if {axis for axis, _ in pair} == {left, right}}
    wrong = []
    for pair, words in pairs.items():
        message = refusal(settings(pair))
        if bool(message) != bool(words) or words not in message:
            wrong.append(f"{sorted(pair)}: expected {words or 'to work'!r}, got {message!r}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("pair", SAMPLE, ids=str)
def test_an_accepted_pair_gives_the_same_finite_numbers_in_parts(pair: list[Name], double: None) -> None:
    backbone = perturbed(BackboneConfig(**{**PLAIN, **settings(frozenset(pair))}))
    # The pseudo-inverse amplifies rounding; see its row in tests/attention/rows.py.
    case = Case.of(backbone, [[3], [0]], time=5, tolerance=1e-7 if ("mixer", "nystrom") in pair else 1e-11)
    assert backbone(case.x, None, case.reset)[0].isfinite().all()
    laws.split_invariance(case, [[1] * 5, [2, 3]])


@pytest.mark.parametrize("pair", REFUSED, ids=str)
def test_the_ways_out_of_a_refusal_work(pair: list[Name]) -> None:
    values = settings(frozenset(pair))
    message = refusal(values)
    for changed in (mended(values, message), *other_ways(values, message)):
        second = refusal(changed)
        # What a loss came with may be gone after one change, so that the loss asks for a second one.
        assert not second or ("leave losses out" in second and not refusal(mended(changed, second))), second


@pytest.mark.parametrize("other", ["span:adaptive", "span:adaptive_dynamic", "memory_kind:compressive", "mixer:linear"])
def test_gradients_of_a_reversible_stack_are_those_of_its_stored_forward_pass(
    other: str, double: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    axis, _, name = other.partition(":")
    config = BackboneConfig(**{**PLAIN, **settings(frozenset({("residual", "reversible"), (axis, name)}))})
    backbone = perturbed(config)
    x = torch.randn(2, 31, 12, requires_grad=True)

    def gradients() -> list[torch.Tensor]:
        y, _ = backbone(x, record=Record())
        found = torch.autograd.grad(y.square().sum(), [x, *backbone.parameters()], allow_unused=True)
        return [torch.zeros(()) if each is None else each for each in found]

    rebuilt = gradients()

    def stored(mix: Any, transform: Any, inputs: Any, last: bool, x1: Any, x2: Any, *parameters: Any) -> Any:
        y1 = x1 + mix(x2)
        return y1, x2 + transform(y1)

    monkeypatch.setattr(ReversibleLayer, "apply", stored)
    for one, same in zip(rebuilt, gradients(), strict=True):
        torch.testing.assert_close(one, same.expand_as(one), rtol=1e-9, atol=1e-9)
