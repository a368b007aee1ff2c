"""Settings that change over a run, as functions of the remaining progress (1 to 0)."""

from collections.abc import Callable, Mapping
from typing import Any, NotRequired, TypedDict

from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule
from torch import Tensor

from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import Fraction, Weight, check


class Line(TypedDict):
    """A linear change over the run, from ``start`` to ``end``, over its first ``fraction`` (all of it by default)."""

    start: Weight
    end: Weight
    fraction: NotRequired[Fraction]


Scheduled = Weight | Callable[[float], float] | Line
"""A number, a line, or a function of the remaining progress (1 to 0)."""


def as_schedule(value: Scheduled, name: str) -> FloatSchedule:
    """A number, ``{"start", "end", "fraction"}`` or a function as a function of the remaining progress.

    Raises:
        ConfigError: for anything else, and for numbers that are negative or not finite, also where a function gives
            them at the start of a run.
    """
    value = check(value, Scheduled, name)
    if isinstance(value, Mapping):
        return FloatSchedule(LinearSchedule(value["start"], value["end"], value.get("fraction", 1.0)))
    if callable(value):
        try:
            first = value(1.0)
        except TypeError as error:
            raise ConfigError(f"{name} must be a function of the remaining progress (1 to 0): {error}") from error
        check(float(first) if isinstance(first, Tensor) else first, Weight, f"{name} at progress 1")
    return FloatSchedule(value)


def plain_schedule(schedule: Any, progress: float) -> float | dict[str, float]:
    """A schedule as JSON values; functions that are not constant or linear become their present value."""
    inner = schedule.value_schedule if isinstance(schedule, FloatSchedule) else schedule
    if isinstance(inner, LinearSchedule):
        return {"start": inner.start, "end": inner.end, "fraction": inner.end_fraction}
    if isinstance(inner, ConstantSchedule):
        return float(inner.val)
    return float(inner(progress)) if callable(inner) else float(inner)
