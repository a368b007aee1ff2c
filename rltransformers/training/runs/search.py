"""What a setting may be in a search: a range or one of several values, as a config or a flag writes it."""

import math
import re
from dataclasses import dataclass
from typing import Any

from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import shown
from rltransformers.core.yaml_text import parse_yaml


@dataclass(frozen=True)
class Span:
    """Numbers from ``low`` to ``high``, both included; whole ones where both are. ``log``: evenly on a log scale."""

    low: float
    high: float
    log: bool = False


@dataclass(frozen=True)
class OneOf:
    """One of several values of any kind."""

    values: tuple[Any, ...]


def read_search(value: Any, name: str) -> Span | OneOf:
    """Search space of one setting in a config (or a flag): ``low..high``, ``low..high:log`` or a list of values."""
    if isinstance(value, list | tuple):
        if len(value) < 2:
            raise ConfigError(f"{name} is a list of {len(value)}: give at least two values to choose from")
        return OneOf(tuple(value))
    words = re.fullmatch(r"\s*(\S+?)\s*\.\.\s*([^\s:]+)\s*(?::\s*(\w+))?\s*", value) if isinstance(value, str) else None
    low, high = (_number(word) for word in words.groups()[:2]) if words else (None, None)
    if words is None or low is None or high is None:
        raise ConfigError(f"{name} must be a range low..high or low..high:log, or a list of values, got {shown(value)}")
    if words[3] not in (None, "log"):
        raise ConfigError(f"{name}: {words[3]!r} behind a range is unknown; write low..high or low..high:log")
    if low >= high:
        raise ConfigError(f"{name} is a range from {low} to {high}: the first must be the smaller one")
    if words[3] and low <= 0:
        raise ConfigError(f"{name} begins at {low}, and a logarithmic range must begin above 0")
    return Span(low, high, words[3] is not None)


def _number(text: str) -> int | float | None:
    """A finite number as configs read it: 1e2 is whole, 100.0 is not."""
    try:
        number = parse_yaml(text, "a range")
    except ConfigError:
        return None
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    return number if is_number and math.isfinite(number) else None
