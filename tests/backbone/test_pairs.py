"""Every pair of mechanisms is accepted or refused as the table written by hand says; what is accepted runs."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from rltransformers import laws
from rltransformers.attention.softmax import SPEC as SOFTMAX
from rltransformers.backbone import AXES, PLAIN, Backbone, BackboneConfig, Record, build, catalogue
from rltransformers.core.errors import ConfigError
from rltransformers.laws import Case, pairs, perturbed
from rltransformers.laws.pairs import ALIKE, IDLE
from rltransformers.laws.partners import MECHANISMS, SIZES
from rltransformers.stacks.reversible import ReversibleLayer
from tests.backbone.combinations import Name, settings, verdicts
from tests.backbone.ways_out import mended, other_ways, refusal
from tests.choice import ALL_CASES

VERDICTS = verdicts()
AXIS_PAIRS = list(combinations(MECHANISMS, 2))
ACCEPTED = sorted(sorted(pair) for pair, words in VERDICTS.items() if not words)
REFUSED = sorted(sorted(pair) for pair, words in VERDICTS.items() if words)
SAMPLE = random.Random(3).sample(ACCEPTED, 60)


def one_of_each_kind(pairs: list[list[Name]]) -> list[list[Name]]:
    """Of the pairs that are refused in the same words, the axes aside, the first one."""
    kinds: dict[tuple[str, ...], list[Name]] = {}
    for pair in pairs:
        kinds.setdefault((VERDICTS[frozenset(pair)], *(axis for axis, _ in pair)), pair)
    return pairs if ALL_CASES else list(kinds.values())


REFUSED_KINDS = one_of_each_kind(REFUSED)


@pytest.fixture
def double() -> Iterator[None]:
    with laws.in_double():
        yield


def test_the_table_knows_every_mechanism() -> None:
    known = {(axis, name) for axis, table in MECHANISMS.items() if axis != "setting" for name in table}
    assert known == {(axis, spec.name) for axis, specs in catalogue().items() for spec in specs}


@pytest.mark.parametrize(("left", "right"), AXIS_PAIRS)
def test_a_pair_is_accepted_or_refused_for_the_reason_in_the_table(left: str, right: str) -> None:
    words_of = {pair: words for pair, words in VERDICTS.items() if {axis for axis, _ in pair} == {left, right}}
    wrong = []
    for pair, words in words_of.items():
        message = refusal(settings(pair))
        if bool(message) != bool(words) or words not in message:
            wrong.append(f"{sorted(pair)}: expected {words or 'to work'!r}, got {message!r}")
    assert not wrong, "\n".join(wrong)


def test_with_memory_0_what_is_accepted_keeps_nothing_of_earlier_tokens() -> None:
    alone = [pair for pair in ACCEPTED if ("setting", "no_memory") in pair]
    backbones = {str(pair): Backbone(BackboneConfig(**{**PLAIN, **settings(frozenset(pair))})) for pair in alone}
    keep = [pair for pair, backbone in backbones.items() if backbone.receptive_field != 0]
    assert keep == [str([("mixer", "informer"), ("setting", "no_memory")])]  # measures, all 0 where a query has one key


@pytest.mark.parametrize("pair", SAMPLE, ids=str)
def test_an_accepted_pair_gives_the_same_finite_numbers_in_parts(pair: list[Name], double: None) -> None:
    backbone = perturbed(BackboneConfig(**{**PLAIN, **settings(frozenset(pair))}))
    # The pseudo-inverse amplifies rounding; see its row in tests/attention/rows.py.
    case = Case.of(backbone, [[3], [0]], time=5, tolerance=1e-7 if ("mixer", "nystrom") in pair else 1e-11)
    assert backbone(case.x, None, case.reset)[0].isfinite().all()
    laws.split_invariance(case, [[1] * 5, [2, 3]])


def active_pairs() -> dict[tuple[str, str], list[list[Name]]]:
    """Accepted pairs of mechanisms that change something, by their axes.

    Every mechanism meets one of every other axis; which one goes round with its place in the table.
    """
    found: dict[tuple[str, str], list[list[Name]]] = {}
    for pair in ACCEPTED:
        if not IDLE & set(pair) and not {"setting", "losses"} & {*dict(pair)} and set(pair) != ALIKE:
            found.setdefault((pair[0][0], pair[1][0]), []).append(pair)
    return found if ALL_CASES else {axes: one_each(those) for axes, those in found.items()}


def one_each(pairs: list[list[Name]]) -> list[list[Name]]:
    """For each mechanism that is in no pair taken so far, one of its pairs."""
    taken: list[list[Name]] = []
    for place, name in enumerate(sorted({name for pair in pairs for name in pair})):
        if not any(name in pair for pair in taken):
            own = [pair for pair in pairs if name in pair]
            taken.append(own[place % len(own)])
    return taken


ACTIVE = active_pairs()
OUTPUTS: dict[str, Tensor] = {}
"""Of mechanisms alone."""


def idle(pair: list[Name]) -> list[Name]:
    """The mechanisms of a pair without which the other one computes the same."""
    one, other = (settings(frozenset([name])) for name in pair)
    unchanged = pairs.idle(settings(frozenset(pair)), one, other, OUTPUTS)
    return [name for name, same in zip(pair, unchanged, strict=True) if same]


@pytest.mark.parametrize("axes", ACTIVE, ids=":".join)
def test_l13_each_of_two_accepted_mechanisms_changes_the_output(axes: tuple[str, str], double: None) -> None:
    found = {str(pair): names for pair in ACTIVE[axes] if (names := idle(pair))}
    assert not found


def test_l13_sees_a_mixer_that_overwrites_what_another_mechanism_does(
    double: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_one = replace(AXES["mixer"].table["additive"], name="mine", offers=SOFTMAX.offers, refuses=())
    monkeypatch.setitem(AXES["mixer"].table, "mine", of_one)
    monkeypatch.setitem(MECHANISMS["mixer"], "mine", {"mixer": "mine"})
    monkeypatch.setattr(build, "check_score", lambda *arguments: None)
    for other in (("head_mixing", "collaborative"), ("head_mixing", "mqa")):
        assert idle([("mixer", "mine"), other]) == [other]


ROW_ACTORS: list[dict[str, Any]] = [
    {"selection": {"name": "lsh", "rounds": 2, "buckets": 4, "window": 3}},
    {"head_mixing": "collaborative"},
    {"kv_heads": 1},
    {"position": "attn_only"},
    {"position": "untied"},
    {"memory_kind": {"name": "memorizing", "store": 3, "neighbors": 2}},
    {"selection": {"name": "routing", "clusters": 3, "window": 2}},
]


@pytest.mark.parametrize("values", ROW_ACTORS, ids=str)
def test_a_score_of_ones_own_is_refused_beside_a_mechanism_that_acts_in_the_score(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the mixer declares, a mechanism is not left out silently."""
    table = AXES["mixer"].table
    for name in ("additive", "gcn", "synthesizer_dense"):
        monkeypatch.setitem(table, "mine", replace(table[name], name="mine", offers=SOFTMAX.offers, refuses=()))
        chosen = {**PLAIN, **SIZES, "position": "none", "mixer": "mine"}
        BackboneConfig(**chosen)
        with pytest.raises(ConfigError) as error:
            BackboneConfig(**{**chosen, **values})
        axis, value = next(iter(values.items()))
        assert "mixer 'mine'" in str(error.value)
        assert f"{axis} {value['name'] if isinstance(value, dict) else value!r}".replace("'", "") in str(
            error.value
        ).replace("'", "")
    monkeypatch.setitem(table, "mine", replace(table["hopfield"], name="mine"))
    BackboneConfig(**{**chosen, **values})


@pytest.mark.parametrize("pair", REFUSED_KINDS, ids=str)
def test_the_ways_out_of_a_refusal_work(pair: list[Name]) -> None:
    values = settings(frozenset(pair))
    message = refusal(values)
    for changed in (mended(values, message), *other_ways(values, message)):
        second = refusal(changed)
        # What a loss came with may be gone after one change, so that the loss asks for a second one.
        assert not second or ("set losses to {}" in second and not refusal(mended(changed, second))), second


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


@pytest.mark.parametrize(
    "values",
    [
        {"preset": "universal_act", "depth": "fixed"},
        {"preset": "mqa", "selection": "lsh"},
        {"preset": "al_rfou", "residual": "reversible"},
        {"width": 24, "heads": 12, "kv_heads": 3, "head_mixing": "differential", "position": "none"},
        {"width": 4, "heads": 4, "position": "rope"},
    ],
    ids=str,
)
def test_the_ways_out_of_a_preset_work(values: dict[str, Any]) -> None:
    """What a preset sets cannot be left out."""
    for _ in range(3):
        try:
            BackboneConfig.from_dict(values)
            return
        except ConfigError as error:
            message = str(error)
        values = mended(values, message)
    raise AssertionError(message)
