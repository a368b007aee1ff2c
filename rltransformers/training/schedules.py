"""Settings that change over a run, as functions of the remaining progress (1 to 0)."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NotRequired, TypedDict

import numpy as np
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule
from torch import Tensor

from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import Fraction, Weight, check, fits


class Line(TypedDict):
    """A linear change from ``start`` to ``end`` over the first ``fraction`` of the run (all of it by default)."""

    start: Weight
    end: Weight
    fraction: NotRequired[Fraction]


Scheduled = Weight | Callable[[float], float] | Line
"""A number, a line, or a function of the remaining progress (1 to 0)."""


class CheckedSchedule:
    """A function of a user, whose values are checked whenever it is asked for one."""

    def __init__(self, function: Callable[[float], Any], name: str) -> None:
        self.function, self.name = function, name

    def __call__(self, progress: float) -> float:
        """The value at the remaining progress; raises ConfigError unless it is finite and not negative."""
        value = self.function(progress)
        value = float(value) if isinstance(value, Tensor) else value
        return float(check(value, Weight, f"{self.name} at progress {progress:.4g}"))


def as_schedule(value: Scheduled, name: str) -> FloatSchedule:
    """A number, ``{"start", "end", "fraction"}`` or a function as a function of the remaining progress.

    Raises:
        ConfigError: for anything else, and for numbers that are negative or not finite; where a function gives them, at
            once for the start of a run, later when they come.
    """
    if isinstance(value, FloatSchedule):
        return value
    value = check(value, Scheduled, name)
    if isinstance(value, Mapping):
        return FloatSchedule(LinearSchedule(value["start"], value["end"], value.get("fraction", 1.0)))
    if callable(value):
        value = CheckedSchedule(value, name)
        try:
            value(1.0)
        except TypeError as error:
            raise ConfigError(f"{name} must be a function of the remaining progress (1 to 0): {error}") from error
    return FloatSchedule(value)


def value_at(value: Any, name: str, progress: float) -> Any:
    """Return the value of a scheduled setting at a remaining progress; None for None."""
    if value is None or (type(value) is float and 0.0 <= value <= 1e6):  # a plain Weight
        return value
    return (value if isinstance(value, FloatSchedule) else as_schedule(value, name))(progress)


def plain_schedule(schedule: Any, progress: float) -> float | dict[str, float]:
    """A schedule as JSON values; functions that are no line become their present value."""
    line = line_of(schedule)
    if line is None:
        return float(_inner(schedule)(progress))
    return line["start"] if line["start"] == line["end"] else line


def warn_of_jumps(values: Mapping[str, Any], before: float, now: float) -> None:
    """Warn of scheduled settings that take a value of earlier in the run, because the run is made longer.

    Args:
        values: settings by name; names of rules and None stay as they are.
        before: remaining progress of the last update.
        now: remaining progress at which the run goes on.
    """
    if now <= before + 1e-9:
        return
    schedules = {name: as_schedule(value, name) for name, value in values.items() if not isinstance(value, str | None)}
    ends = {name: (schedule(before), schedule(now)) for name, schedule in schedules.items()}
    jumps = [f"{name} from {old:g} to {new:g}" for name, (old, new) in ends.items() if not np.isclose(old, new, atol=0)]
    if jumps:
        warnings.warn(
            f"the run was to end earlier, and its schedules are those of the longer run now: {', '.join(jumps)}; give "
            f"another value, load(path, {jumps[0].split()[0]}=...), or train with all steps from the start",
            stacklevel=2,
        )


def _inner(schedule: Any) -> Any:
    """The function of the user, of Stable-Baselines3, or the number behind a schedule."""
    inner = schedule.value_schedule if isinstance(schedule, FloatSchedule) else schedule
    return inner.function if isinstance(inner, CheckedSchedule) else inner


def line_of(schedule: Any) -> dict[str, float] | None:
    """The line that a schedule is, None where it is none; functions of the user are asked at nine points."""
    inner = _inner(schedule)
    if isinstance(inner, LinearSchedule):
        return {"start": inner.start, "end": inner.end, "fraction": inner.end_fraction}
    if isinstance(inner, ConstantSchedule):
        inner = inner.val
    if not callable(inner):
        return {"start": float(inner), "end": float(inner)}
    points = [point / 8 for point in range(9)]
    try:
        values = [float(inner(progress)) for progress in points]
    except Exception:  # of the user's function; a run that comes to such a point says what is wrong there
        return None
    start, end = values[-1], values[0]
    straight = [end + (start - end) * progress for progress in points]
    if all(fits(value, Weight) for value in values) and np.allclose(
        values, straight, rtol=0.0, atol=1e-6 * max(values)
    ):
        return {"start": start, "end": end}
    return None
