"""Choices as they are written in configs."""

from typing import Any

import pytest

from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Choice, Spec


def build(size: int, *, window: int, scale: float = 2.0) -> None:
    """A builder with one required and one optional option."""


TABLE = {
    "band": Spec("A2", "band", "pattern", "someone 2020", "A band.", build),
    "bare": Spec("A0", "bare", "pattern", "-", "Nothing."),
}


def test_options_are_the_keyword_only_parameters_of_the_builder() -> None:
    assert list(TABLE["band"].options()) == ["window", "scale"]
    assert TABLE["band"].options()["scale"] == 2.0
    assert TABLE["bare"].options() == {}


@pytest.mark.parametrize("value", ["bare", {"name": "band", "window": 3}, {"name": "band", "window": 3, "scale": 1.0}])
def test_a_choice_is_written_as_it_was_read(value: Any) -> None:
    choice = Choice.parse(value, "pattern", TABLE)
    assert choice.to_dict() == value
    assert Choice.parse(choice, "pattern", TABLE) == choice


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("bond", "unknown pattern 'bond'; did you mean 'band'?"),
        ("xyz", "unknown pattern 'xyz'; known: band, bare"),
        ("band", "pattern 'band' needs window: write {name: band, window: ...}"),
        ({"name": "band", "window": 3, "scal": 1}, "pattern 'band' has no option 'scal'; did you mean 'scale'?"),
        ({"name": "bare", "window": 3}, "pattern 'bare' has no option 'window'; it has no options"),
        ({"window": 3}, r"pattern takes a name or {name: ..., option: value}, got {'window': 3}"),
        (None, "pattern takes a name"),
    ],
)
def test_a_choice_that_is_not_in_the_table_is_refused(value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Choice.parse(value, "pattern", TABLE)


def test_options_are_shown_with_their_defaults_and_required_ones_bare() -> None:
    def build(dims: int, *, window: int, sinks: int = 1) -> None: ...

    spec = Spec("T1", "toy", "pattern", "-", "A toy.", build)
    assert spec.options_text() == ["window", "sinks=1"]
    assert Spec("T2", "plain", "pattern", "-", "No builder.").options_text() == []
