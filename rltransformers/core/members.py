"""Arrays as members of spaces: numbers, flags, classes and bounds. Axis letter: R rows, one per step or environment."""

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rltransformers.core.errors import DataError, one_line

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Space = gym.Space[Any]

LARGEST_FLOAT = float(np.finfo(np.float32).max)
ACTION_ROUNDING = 1e-5
"""Part of the larger bound by which a component of an action may lie beyond its bounds.

Policies end in a tanh that is rescaled, in float32: the result is off by a few roundings of 6e-8. Bounds of 0.4 in
float64 and in float32 differ by 6e-9. A value further out was never an action of that space.
"""
_NOT_NUMBERS = {
    "c": "complex numbers",
    "U": "text",
    "S": "text",
    "T": "text",
    "M": "dates",
    "m": "time spans",
    "O": "objects (ragged rows, None or mixed types)",
    "V": "records",
}


def numbers(values: Any) -> Array:
    """``values`` as an array of booleans, integers or floats; nothing else is turned into a number.

    Raises:
        DataError: says what the values are instead.
    """
    if np.ma.isMaskedArray(values) and np.ma.getmaskarray(values).any():
        raise DataError("has masked entries; fill or drop them")
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(f"is no array of numbers ({one_line(error)})") from error
    check_numeric(array.dtype)
    return array


def check_numeric(dtype: np.dtype[Any]) -> None:
    """Raise unless the type is one of booleans, integers or floats.

    Raises:
        DataError: says what an array of this type holds instead.
    """
    if dtype.kind not in "biuf":
        held = _NOT_NUMBERS.get(dtype.kind, "no numbers")
        raise DataError(f"has dtype {dtype}: {held}; give booleans, integers or floats")


def flags(values: Any) -> Bools:
    """A new array of booleans from booleans, or from numbers that are exactly 0 or 1.

    Raises:
        DataError: names the first other value and its step (the first axis).
    """
    array = numbers(values)
    if array.dtype.kind != "b":
        good = (array == 0) | (array == 1)
        if not good.all():
            where = tuple(np.argwhere(~good)[0])
            place = f" at step {where[0]}" if where else ""
            raise DataError(f"is {array[where]!s}{place}; flags are True or False, or exactly 0 or 1")
    return array.astype(bool)


def members(space: Space, rows: Array, *, bounded: bool = False) -> Bools:
    """Which rows [R, ...] are finite in float32 and, for classes and integers, inside the space.

    Bounds of Boxes count only when ``bounded``, up to ``ACTION_ROUNDING`` for floats: observations of real environments
    exceed theirs, actions do not.
    """
    inside = finite(rows)
    if isinstance(space, spaces.Discrete):
        inside = (rows >= space.start) & (rows < space.start + space.n)
    elif isinstance(space, spaces.MultiDiscrete):
        inside = (rows >= space.start) & (rows < space.start + space.nvec)
    elif isinstance(space, spaces.MultiBinary):
        inside = (rows == 0) | (rows == 1)
    elif isinstance(space, spaces.Box) and space.dtype.kind in "iu" and rows.dtype != space.dtype:
        limits = np.iinfo(space.dtype)
        inside = (rows >= limits.min) & (rows <= limits.max)
    if rows.dtype.kind == "f" and np.dtype(space.dtype).kind != "f":
        inside = inside & (rows == np.trunc(rows))
    if bounded and isinstance(space, spaces.Box):
        low, high = action_bounds(space)
        inside = inside & (rows >= low) & (rows <= high)
    return np.asarray(inside if inside.ndim == 1 else inside.all(axis=tuple(range(1, inside.ndim))))


def all_members(space: Space, rows: Array) -> bool:
    """Whether ``members`` says so of every row; a few microseconds for the usual types."""
    kind, wanted = rows.dtype.kind, np.dtype(space.dtype)
    if kind == "f" and wanted.kind == "f":
        return all_finite(rows)
    if kind in "iu" and isinstance(space, spaces.Discrete):
        return not len(rows) or bool(space.start <= rows.min() and rows.max() < space.start + space.n)
    if isinstance(space, spaces.Box) and rows.dtype == wanted:
        return True
    return bool(members(space, rows).all())


def action_bounds(space: spaces.Box) -> tuple[Array, Array]:
    """Lowest and highest accepted value per component: the bounds, for floats with room for rounding."""
    low, high = space.low, space.high
    if low.dtype.kind != "f":
        return low, high
    low, high = low.astype(np.float64), high.astype(np.float64)
    sizes = [np.where(np.isfinite(bound), np.abs(bound), 0.0) for bound in (low, high)]
    room = ACTION_ROUNDING * np.maximum(*sizes)
    return low - room, high + room


def all_finite(rows: Array) -> bool:
    """Whether all entries are finite numbers in float32."""
    if rows.dtype.itemsize > 4:
        return np.count_nonzero(np.abs(rows) <= LARGEST_FLOAT) == rows.size or bool(finite(rows).all())
    return np.count_nonzero(np.isfinite(rows)) == rows.size


def finite(rows: Array) -> Bools:
    """Which entries are finite numbers in float32, the type that networks read."""
    if rows.dtype.kind != "f":
        return np.ones(rows.shape, bool)
    if rows.dtype.itemsize > 4:
        with np.errstate(over="ignore"):
            rows = rows.astype(np.float32)
    result: Bools = np.isfinite(rows)
    return result
