"""The rules judge mechanisms by what these declare."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from rltransformers.attention.roles import Part
from rltransformers.backbone import AXES, PLAIN, BackboneConfig, catalogue, rules
from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Feature, Loss, Refusal, Spec
from rltransformers.mixers import nystrom
from tests.backbone.ways_out import refusal


def prior(**declared: Any) -> Spec:
    """A prior that nobody has seen before."""
    return Spec("B99", "new", "prior", "-", "Nothing.", Part, **declared)


@pytest.mark.parametrize(
    ("declared", "others", "words"),
    [
        ({}, {}, ""),
        ({}, {"mixer": "linear"}, ""),
        ({"needs": [Feature.KEYS]}, {"mixer": "linear"}, ""),
        ({"needs": [Feature.KEYS]}, {"mixer": ["average", "linear"]}, ""),
        (
            {"needs": [Feature.KEYS]},
            {"mixer": "average"},
            "prior 'new' needs queries, keys and values, but mixer 'average' has none; set prior to 'none' or mixer to "
            "'softmax' or ",
        ),
        ({"refuses": [Refusal(Feature.REACH, "it is blind")]}, {"pattern": "full"}, ""),
        (
            {"refuses": [Refusal(Feature.REACH, "it is blind")]},
            {"pattern": ["full", {"name": "band", "window": 3}]},
            "prior 'new' does not go with a reach of its own (pattern 'band'): it is blind; set pattern to 'full' or "
            "prior to 'none'",
        ),
        ({"offers": [Feature.CARRY]}, {"residual": "reversible"}, "what passes from layer to layer"),
        ({"refuses": [Refusal(Feature.LOSSES, "it is free")]}, {}, ""),
        ({"produces": [Loss("span")]}, {"losses": {"span": 1.0}}, ""),
        ({"produces": [Loss("ponder")]}, {"losses": {"span": 1.0}}, "loss 'span' has nothing to act on"),
    ],
)
def test_a_new_mechanism_is_judged_by_what_it_declares(
    declared: dict[str, Any], others: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(AXES["prior"].table, "new", prior(**declared))
    message = refusal({"prior": "new", **others})
    assert words in message and bool(words) == bool(message)


def test_a_new_mixer_gets_what_it_offers_to_take_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    mixer = Spec("S99", "new", "mixer", "-", "Nothing.", nystrom.Nystrom, nystrom.Options, offers=[Feature.ROWS])
    monkeypatch.setitem(AXES["mixer"].table, "new", mixer)
    assert not refusal({"mixer": "new", "memory_kind": "cache"})
    assert "mixer 'new' has none" in refusal({"mixer": "new", "memory_kind": "compressive"})
    assert "mixer 'new' has none" in refusal({"mixer": "new", "kv_heads": 2})
    assert "mixer 'new' has none" in refusal({"mixer": "new", "position": "rope"})
    message = refusal({"mixer": "average", "memory": 0})
    assert "set mixer to 'softmax' or " in message
    assert message.endswith(" or 'new' or memory to at least 1")


def test_rules_name_no_mechanism() -> None:
    names = {spec.name for specs in catalogue().values() for spec in specs}
    for node in ast.walk(ast.parse(Path(rules.__file__).read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value:
            quoted = {*re.findall(r"'(\w+)'", node.value), node.value}
            assert not quoted & names, f"line {node.lineno}"


def test_every_axis_has_a_neutral_answer_that_needs_and_refuses_nothing() -> None:
    for axis in AXES.values():
        if axis.neutral:
            spec = axis.table[axis.neutral]
            assert not spec.needs and not spec.refuses and not spec.acts_at
    BackboneConfig(**PLAIN)


@pytest.mark.parametrize("axis", sorted(AXES))
def test_only_axes_that_say_so_take_lists(axis: str) -> None:
    if axis == "losses":
        return
    value, listed = AXES[axis].neutral, AXES[axis].per_layer or AXES[axis].several
    assert ("takes a name or" in refusal({axis: [value, value]})) != listed
    assert ("takes a name or" in refusal({axis: [[value] * 4]})) != AXES[axis].per_head


def test_layers_take_turns_through_lists_of_different_lengths() -> None:
    values = {**PLAIN, "layers": 5, "span": ["full", "adaptive"], "selection": ["none", "none", "topk"]}
    choices = BackboneConfig(**values).choices
    assert [choices.layer(index).span.name for index in range(5)] == ["full", "adaptive", "full", "adaptive", "full"]
    assert [choices.layer(index).selection.name for index in range(5)] == ["none", "none", "topk", "none", "none"]
    with pytest.raises(ConfigError, match="only one layer"):
        BackboneConfig(**{**values, "depth": "universal"})
