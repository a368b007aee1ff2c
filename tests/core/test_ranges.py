"""What annotations of settings accept, and what the messages say."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import numpy as np
import pytest
from annotated_types import Ge, Interval, Lt

from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import (
    Count,
    DropoutRate,
    Fraction,
    NonNegativeNumber,
    PositiveNumber,
    UnitInterval,
    Weight,
    WholeNumber,
    annotations,
    check,
    check_fields,
    check_settings,
    describe,
    fits,
    shown,
    strict,
)

NAN, INF = float("nan"), float("inf")


class Ramp(TypedDict):
    """A change from one number to another."""

    start: float
    end: Fraction


@pytest.mark.parametrize(
    ("annotation", "given", "expected"),
    [
        (float, 1, 1.0),
        (Weight, np.int64(2), 2.0),
        (Weight | None, 2, 2.0),
        (float | Callable[[float], float], 2, 2.0),
        (list[float], [1, 2.5], [1.0, 2.5]),
        (Sequence[float] | float, (1, 2), (1.0, 2.0)),
        (tuple[Fraction, int], [1, 1], [1.0, 1]),
        (Mapping[str, list[float]], {"a": [1]}, {"a": [1.0]}),
        (Ramp, {"start": 3, "end": 1}, {"start": 3.0, "end": 1.0}),
        (Ramp | float, {"start": 3, "end": 1}, {"start": 3.0, "end": 1.0}),
        (list[Ramp], [{"start": 3, "end": 1}], [{"start": 3.0, "end": 1.0}]),
        (int, 1e5, 100_000),
        (Count | None, np.float64(3.0), 3),
        (tuple[int, float], (2.0, 3), (2, 3.0)),
        (Mapping[str, list[int]], {"a": [1e3]}, {"a": [1000]}),
        # these stay as they are
        (float | int, 1.0, 1.0),
        (Count | float | None, 1.0, 1.0),
        (int, 1, 1),
        (int | float, 1, 1),
        (float | int, 1, 1),
        (Count | float | None, 1, 1),
        (list[int], [1], [1]),
        (Iterable[float] | float, [1, "x"], [1, "x"]),
        (Any, [1], [1]),
        (dict[str, Any], {"a": 1}, {"a": 1}),
        (Literal[1], 1, 1),
        (bool | float, True, True),
    ],
)
def test_whole_numbers_become_those_of_python_that_are_asked_for(annotation: Any, given: Any, expected: Any) -> None:
    # repr tells 1 from 1.0 and True, which are equal
    assert repr(check(given, annotation, "x")) == repr(expected)


def test_fields_of_records_become_fractions_too() -> None:
    @dataclass(frozen=True)
    class Settings:
        rate: Weight
        steps: Count
        returns: list[float]

        def __post_init__(self) -> None:
            check_fields(self)

    assert repr(Settings(1, 1, [1])) == repr(Settings(1.0, 1, [1.0]))


class Color(StrEnum):
    """Two texts."""

    RED = "red"
    BLUE = "blue"


CASES: list[tuple[Any, list[Any], list[Any], str]] = [
    (int, [0, -3, 2**70, 1e6], [1.5, True, "1", None, NAN], "a whole number"),
    (float, [0, 1.5, -2], [NAN, INF, -INF, True, "1.5", None, 1j], "a finite number"),
    (bool, [True, False], [0, 1, "true", None], "true or false"),
    (str, ["", "x"], [1, None, b"x"], "a text"),
    (None, [None], [0, "", False], "None (null)"),
    (Count, [1, 7, 1e5], [0, -1, 0.0, 1.5, INF, True], "a whole number of at least 1"),
    (WholeNumber, [0, 7], [-1, -1.0, 0.5], "a whole number of at least 0"),
    (PositiveNumber, [1e-300, 3, 1e30], [0, 0.0, -1.0, NAN, INF, 1e31], "a finite number in (0, 1e+30]"),
    (NonNegativeNumber, [0, 3.5, 1e30], [-1e-300, NAN, 1e31], "a finite number in [0, 1e+30]"),
    (Weight, [0, 1e6], [-1e-300, 1e7], "a finite number in [0, 1000000.0]"),
    (UnitInterval, [0, 0.5, 1], [-0.1, 1.1, NAN], "a finite number in [0, 1]"),
    (Fraction, [0.1, 1], [0, 1.1], "a finite number in (0, 1]"),
    (DropoutRate, [0, 0.99], [1, -0.1], "a finite number in [0, 1)"),
    (Annotated[int, Interval(ge=1, lt=4)], [1, 3], [0, 4], "a whole number in [1, 4)"),
    (Annotated[float, Lt(0)], [-1], [0], "a finite number below 0"),
    (Count | None, [1, None], [0, "null"], "a whole number of at least 1 or None (null)"),
    (Literal["a", "b"], ["a"], ["c", None, 1], "one of 'a', 'b'"),
    (Color, ["red", Color.BLUE], ["green", None, 1], "one of 'red', 'blue'"),
    (Literal[1], [1], [True, 1.0], "1"),  # True == 1 and 1.0 == 1, yet neither was meant
    (Sequence[Count], [[], [1], (2, 3)], ["12", [0], 1, {1: 1}], "a list of whole numbers of at least 1"),
    (list[Any], [[], [None]], [(), "x"], "a list"),
    (Mapping[str, float], [{}, {"a": 1}], [{1: 1.0}, {"a": NAN}, []], "a mapping to finite numbers"),
    (dict[str, Any], [{"a": None}], [{1: 2}, None], "a mapping"),
    (Callable[[float], float], [abs], [1, "abs"], "a function"),
    (float | Callable[[float], float], [1, abs], ["abs", NAN], "a finite number or a function"),
    (Any, [None, NAN], [], "anything"),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "good", "bad", "words"), CASES, ids=[case[3] for case in CASES])
def test_an_annotation_accepts_its_values_and_no_others(annotation: Any, good: Any, bad: Any, words: str) -> None:
    assert describe(annotation) == words
    for value in good:
        assert fits(value, annotation), value
        check(value, annotation, "x")
    for value in bad:
        assert not fits(value, annotation), value
        with pytest.raises(ConfigError) as caught:
            check(value, annotation, "algorithm.x")
        assert str(caught.value).startswith(f"algorithm.x must be {words}, got {value!r}")


def test_numpy_numbers_become_those_of_python() -> None:
    for given, annotation, kind in ((np.int64(3), Count, int), (np.float32(0.5), float, float), (np.True_, bool, bool)):
        assert type(check(given, annotation, "x")) is kind
    with pytest.raises(ConfigError):
        check(np.float32(np.nan), float, "x")
    with pytest.raises(ConfigError):
        check(np.True_, int, "x")


def test_a_text_becomes_the_member_of_an_enumeration_that_it_names() -> None:
    assert check("red", Color, "x") is Color.RED and check(Color.BLUE, Color, "x") is Color.BLUE
    assert check("blue", Literal["auto"] | Color, "x") is Color.BLUE
    assert check({"a": ["red"]}, Mapping[str, list[Color]], "x")["a"][0] is Color.RED
    with pytest.raises(ConfigError, match="x must be one of 'red', 'blue', got 'blu'; did you mean 'blue'"):
        check("blu", Color, "x")


def test_a_mistyped_name_gets_the_closest_one() -> None:
    with pytest.raises(ConfigError, match="did you mean 'update'"):
        check("updates", Literal["never", "update"] | None, "memory_refresh")


def test_arguments_are_checked_by_the_signature() -> None:
    def agent(gamma: UnitInterval = 0.9, *, steps: Annotated[int, Ge(2)], name: str = "x") -> None: ...

    assert check_settings(annotations(agent), {"gamma": 1, "steps": np.int32(2)}) == {"gamma": 1, "steps": 2}
    with pytest.raises(ConfigError, match=r"algorithm\.steps must be a whole number of at least 2, got 1"):
        check_settings(annotations(agent), {"steps": 1}, "algorithm.")
    with pytest.raises(ConfigError, match=r"unknown setting algorithm\.gama; did you mean 'gamma'"):
        check_settings(annotations(agent), {"gama": 1}, "algorithm.")


class Line(TypedDict):
    """A record with a member that may be left out."""

    start: UnitInterval
    end: NotRequired[Count]


MEMBERS: list[tuple[Any, str]] = [
    ({"start": 2.0}, r"x\.start must be a finite number in \[0, 1\], got 2.0"),
    ({"start": 0.5, "end": 0}, r"x\.end must be a whole number of at least 1, got 0"),
    ({"start": 0.5, "ende": 1}, r"unknown setting x\.ende; did you mean 'end'"),
    ({"start": 0.5, 3: 1}, r"unknown setting x\.3"),
    ({"end": 1}, "x needs start: it is a mapping with start, end, got"),
    ([], "x must be .*a mapping with start, end.*, got"),
]


@pytest.mark.parametrize(("value", "message"), MEMBERS)
@pytest.mark.parametrize("annotation", [Line, Line | float | None])
def test_members_of_a_record_are_checked_by_their_own_names(value: Any, message: str, annotation: Any) -> None:
    assert not fits(value, annotation)
    with pytest.raises(ConfigError, match=message):
        check(value, annotation, "x")
    for good in ({"start": 1}, {"start": 0.5, "end": 2}):
        assert fits(good, annotation) and check(good, annotation, "x") == good


KINDS: list[tuple[Any, list[Any], list[Any], str]] = [
    (tuple[UnitInterval, Count], [(0.5, 1), [0, 2]], [(0.5,), (0.5, 1, 1), (2, 1), (0.5, 0), "ab"], "a list of 2: "),
    (tuple[int, ...], [(), (1, 2)], [(1.5,), [1]], "a list of whole numbers"),
    (type[Exception], [ValueError, Exception], [int, ValueError(), "ValueError", None], "a class made from Exception"),
    (type, [int], [3, "int"], "a class"),
    (os.PathLike[str], [Path("x")], ["x", 3], "a path"),
    (np.ndarray, [np.zeros(2)], [[0.0], None], "a ndarray"),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "good", "bad", "words"), KINDS, ids=[case[3] for case in KINDS])
def test_other_kinds_of_values(annotation: Any, good: list[Any], bad: list[Any], words: str) -> None:
    assert describe(annotation).startswith(words)
    assert all(fits(value, annotation) for value in good)
    assert not any(fits(value, annotation) for value in bad)


HUGE = 10**5000
"""More digits than Python prints."""


@pytest.mark.parametrize(
    ("value", "annotation"),
    [(HUGE, float), (-HUGE, Count), (HUGE, str), ([HUGE], Sequence[float]), (10**400, float)],
    ids=["a number", "a count", "a text", "a list", "printable"],
)
def test_a_huge_number_is_refused_in_one_short_line(value: Any, annotation: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        check(value, annotation, "x")
    assert str(caught.value).startswith("x must be ") and len(str(caught.value)) < 700 and "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [np.zeros((40, 40)), "line\nline", ["x" * 1000], {"a": [HUGE]}], ids=list("abcd"))
def test_what_is_shown_of_a_value_is_one_short_line(value: Any) -> None:
    assert len(shown(value)) <= 400 and "\n" not in shown(value)


def test_a_strict_function_checks_before_it_does_anything() -> None:
    done: list[Any] = []

    @strict
    def act(first: Any, count: Count, *rest: int, share: UnitInterval = 0.5, **more: int) -> str:
        """What it does."""
        done.append((first, count, rest, share, more))
        return "done"

    refused: list[tuple[list[Any], dict[str, Any], str]] = [
        ([0, 0], {}, "count"),
        ([0], {"count": True}, "count"),
        ([0, 1], {"share": 2}, "share"),
    ]
    for args, kwargs, name in refused:
        with pytest.raises(ConfigError, match=f"^{name} must be"):
            act(*args, **kwargs)
    missing: list[list[Any]] = [[], [0]]
    for args in missing:
        with pytest.raises(TypeError, match="missing"):
            act(*args)
    assert not done
    count: Any = np.int64(2)
    assert act(None, count, 7, share=1, other=3) == "done"
    assert done == [(None, 2, (7,), 1, {"other": 3})] and type(done[0][1]) is int
    assert act.__name__ == "act" and act.__doc__ == "What it does."


def test_a_strict_method_of_a_class_leaves_the_first_argument_alone() -> None:
    class Agent:
        @classmethod
        @strict
        def load(cls, path: str) -> str:
            return f"{cls.__name__} {path}"

        @strict
        def learn(self, steps: Count) -> int:
            return steps

    assert Agent.load("x") == "Agent x" and Agent().learn(2) == 2
    with pytest.raises(ConfigError, match="path must be a text, got 3"):
        Agent.load(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="steps must be"):
        Agent().learn(0)


def test_the_fields_of_a_record_are_checked_when_it_is_made() -> None:
    @dataclass(frozen=True)
    class Part:
        steps: Count
        name: str | None = None

        def __post_init__(self) -> None:
            check_fields(self, "part.")

    assert Part(3, "x").steps == 3
    for values, message in (((0,), r"part\.steps must be .* got 0"), ((1, 2), r"part\.name must be a text or None")):
        with pytest.raises(ConfigError, match=message):
            Part(*values)


def test_settings_are_checked_by_a_table() -> None:
    table = {"steps": Count, "name": str}
    assert check_settings(table, {"steps": np.int32(2)}) == {"steps": 2}
    for values, message in (
        ({"step": 2}, r"unknown setting run\.step; did you mean 'steps'"),
        ({3: 2}, r"unknown setting run\.3"),
        ({"steps": 2, "name": 3}, r"run\.name must be a text, got 3"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_settings(table, values, "run.")  # type: ignore[arg-type]


def test_an_unknown_argument_is_told_with_the_one_that_was_meant() -> None:
    @strict
    def learn(total_timesteps: int, log_interval: int = 1) -> int:
        return total_timesteps + log_interval

    with pytest.raises(TypeError, match=r"learn\(\) has no argument 'total_timestep'; did you mean 'total_timesteps'"):
        learn(total_timestep=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        learn()  # type: ignore[call-arg]
