"""Numbers and sizes in words, and parts of what ``repr`` says about agents, policies, states and data."""

import math
from collections.abc import Iterable
from typing import Any

from rltransformers.core.ranges import shown


def count(number: int, noun: str) -> str:
    """ "1 step", "2,000 steps"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def number(value: float | None) -> str:
    """For people: three decimals below 10, none from 1000 on, no zeros at the end."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return "∞" if value > 0 else str(value)
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    digits = f"{value:.{3 if abs(value) < 10 else 1}f}".rstrip("0").rstrip(".")
    return "0" if digits == "-0" else digits


def exact(value: float) -> str:
    """ "20", "20.00001": six digits, or as many as it takes to be that number."""
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))


def spaces_line(observation_space: Any, action_space: Any) -> str:
    """The second line: what is observed and what is done."""
    return f"\n  observations {shown(observation_space)}, actions {shown(action_space)}"


def size_of(tensors: Iterable[Any]) -> str:
    """Memory of tensors or arrays, "1.2 MB"."""
    total = sum(each.nbytes for each in tensors)
    return f"{total / 1e6:,.1f} MB" if total >= 1e5 else f"{total / 1e3:,.1f} kB"
