"""Choices as they are written in configs."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest
from annotated_types import Gt

from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import Count
from rltransformers.core.spec import Choice, Spec


@dataclass(frozen=True)
class Options:
    """One required and one optional option."""

    window: Count
    scale: Annotated[float, Gt(0)] = 2.0


def build(size: int, options: Options) -> float:
    """Size and options in one number."""
    return size * options.window * options.scale


TABLE = {
    "band": Spec("A2", "band", "pattern", "someone 2020", "A band.", build, Options),
    "bare": Spec("A0", "bare", "pattern", "-", "Nothing."),
}


def test_options_are_the_fields_of_the_record() -> None:
    assert TABLE["band"].defaults() == {"window": dataclasses.MISSING, "scale": 2.0}
    assert list(TABLE["band"].ranges()) == ["window", "scale"]
    assert TABLE["bare"].defaults() == TABLE["bare"].ranges() == {}


def test_a_builder_gets_the_sizes_and_the_record_of_all_options() -> None:
    choice = Choice.parse({"name": "band", "window": 3}, "pattern", TABLE)
    assert choice.options == Options(window=3, scale=2.0)
    assert choice.build(5) == 30.0


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
        (
            {"name": "band", "window": 3, "scal": 1},
            r"pattern 'band': unknown setting pattern\.scal; did you mean 'scale'",
        ),
        ({"name": "bare", "window": 3}, r"pattern 'bare': unknown setting pattern\.window; it takes none"),
        ({"window": 3}, r"pattern takes a name or {name: ..., option: value}, got {'window': 3}"),
        (None, "pattern takes a name"),
    ],
)
def test_a_choice_that_is_not_in_the_table_is_refused(value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Choice.parse(value, "pattern", TABLE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "x.window must be a whole number of at least 1, got 0"),
        ({"window": True}, "x.window must be a whole number of at least 1, got True"),
        ({"window": 2, "scale": 0}, "x.scale must be a finite number above 0, got 0"),
        ({"window": 2, "scale": None}, "x.scale must be a finite number above 0, got None"),
        ({"window": 2, "scale": float("nan")}, "x.scale must be a finite number above 0, got nan"),
    ],
)
def test_options_are_checked_and_named_by_their_path(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Choice.parse({"name": "band", **options}, "pattern", TABLE, "x")


def test_an_option_at_its_default_is_not_written() -> None:
    assert Choice.parse({"name": "band", "window": 3, "scale": 2}, "pattern", TABLE).to_dict() == {
        "name": "band",
        "window": 3,
    }


def test_an_entry_that_other_settings_select_says_which() -> None:
    table = {"mqa": Spec("H1", "mqa", "heads", "-", "One key head.", settings="kv_heads: 1")}
    with pytest.raises(ConfigError, match="heads 'mqa' is chosen by other settings: write kv_heads: 1"):
        Choice.parse("mqa", "heads", table)


def test_whole_numbers_are_taken_as_fractions_and_numbers_of_numpy_as_those_of_python() -> None:
    options = Choice.parse({"name": "band", "window": np.int64(3), "scale": 2}, "pattern", TABLE).options
    assert [type(value) for value in vars(options).values()] == [int, float]
    assert options == Options(window=3, scale=2.0)


def test_options_are_shown_with_their_defaults_and_what_they_accept() -> None:
    assert TABLE["band"].options_text() == [
        "window (a whole number of at least 1)",
        "scale=2.0 (a finite number above 0)",
    ]
    assert Spec("T2", "plain", "pattern", "-", "No builder.").options_text() == []
