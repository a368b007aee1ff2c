"""What environments and people hand in, checked: numbers, flags, members of spaces, observations, outcomes, infos.

Axis letters: N environments, R rows, one per step or environment.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from torch import Tensor

from rltransformers.core.errors import DataError, one_line
from rltransformers.core.ranges import shown
from rltransformers.core.spaces import SUPPORTED_LEAVES, Space, leaf_values, observation_leaves

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
When = Callable[[], str]  # returns the step, for messages, as "in step 3"
Place = Callable[[int], str]
"""Row of a batch to its environment and, where known, the step, for messages, as "2 in step 7"."""

LARGEST_FLOAT = float(np.finfo(np.float32).max)
ACTION_ROUNDING = 1e-5
"""Part of the larger bound by which a component of an action may lie beyond its bounds.

Policies end in a tanh that is rescaled, in float32: the result is off by a few roundings of 6e-8. Bounds of 0.4 in
float64 and in float32 differ by 6e-9. A value further out was never an action of that space.
"""
WAY_OUT = "repair the environment or its wrappers"
NOT_FINITE = (
    "look whether its weights are finite, and scale observations that are too large for float32 inside the network "
    "(VecNormalize does)"
)
"""Way out for a policy whose numbers are not finite."""
_NOT_NUMBERS = {
    "c": "complex numbers",
    **dict.fromkeys("UST", "text"),
    "M": "dates",
    "m": "time spans",
    "O": "objects (ragged rows, None or mixed types)",
    "V": "records",
}


def torch_type(dtype: npt.DTypeLike | None) -> torch.dtype:
    """The type of torch that is called like this one of numpy."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


def numbers(values: Any) -> Array:
    """``values`` as an array of booleans, integers or floats; DataError for others says what they are instead."""
    if np.ma.isMaskedArray(values) and np.ma.getmaskarray(values).any():
        raise DataError("has masked entries; fill or drop them")
    try:
        array = as_array(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(f"is no array of numbers ({one_line(error)})") from error
    check_numeric(array.dtype)
    return array


def as_array(values: Any) -> Array:
    """``np.asarray``, of tensors and lists of them, too, with or without a gradient; bfloat16 becomes float32."""
    if isinstance(values, list | tuple) and values and isinstance(values[0], Tensor):
        values = torch.stack(list(values))
    if isinstance(values, Tensor):
        values = values.detach().cpu().to_dense()
        known = values.dtype in (torch.float16, torch.float32, torch.float64) or not values.is_floating_point()
        values = values if known else values.float()
    return np.asarray(values)


def check_numeric(dtype: np.dtype[Any]) -> None:
    """Raise DataError unless the type is one of booleans, integers or floats."""
    if dtype.kind not in "biuf":
        held = _NOT_NUMBERS.get(dtype.kind, "no numbers")
        raise DataError(f"has dtype {dtype}: {held}; give booleans, integers or floats")


def flags(values: Any) -> Bools:
    """A new array of booleans from booleans, or from numbers that are exactly 0 or 1; DataError for the first other."""
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


def read_leaves(space: Space) -> dict[str, Space]:
    """The leaves that a network can read; a recording may leave out others."""
    return {path: leaf for path, leaf in observation_leaves(space).items() if isinstance(leaf, SUPPORTED_LEAVES)}


def check_outcome(count: int, rewards: Any, ends: Mapping[str, Any], when: When) -> None:
    """Raise DataError unless there is one finite reward and one flag [N] of each kind, by name, per environment."""
    plain = type(rewards) is np.ndarray and rewards.dtype.kind == "f" and rewards.shape == (count,)
    if not plain or not all_finite(rewards):
        _check_each("reward", rewards, count, when)
    for name, ended in ends.items():
        if not (type(ended) is np.ndarray and ended.dtype.kind == "b" and ended.shape == (count,)):
            _check_each(name, ended, count, when)


def _check_each(what: str, values: Any, count: int, when: When) -> None:
    if np.ndim(values) == 0 or len(values) != count:
        raise DataError(f"{what} must be one for each of {count} environments, got {shown(values)} {when()}; {WAY_OUT}")
    for index, value in enumerate(values):
        check_value(what, value, index, when)


def check_value(what: str, value: Any, index: int, when: When) -> None:
    """Raise DataError unless the value of environment ``index`` is a finite reward, or a flag of another name."""
    try:
        array = numbers(value) if what == "reward" else flags(value)
        if array.shape != ():
            due = "one number, as float(reward)" if what == "reward" else "True or False"
            raise DataError(f"has shape {array.shape}, it must be {due}")
    except DataError as error:
        raise DataError(f"{what} of environment {index} {error} {when()}; {WAY_OUT}") from error
    if not finite(array.astype(np.float64)).all():
        raise DataError(f"{what} of environment {index} is {array} {when()}, not finite in float32; {WAY_OUT}")


def check_observations(
    leaves: Mapping[str, Space], values: Mapping[str, Any], what: str = "observation", place: Place = str
) -> None:
    """Raise DataError for the first row and leaf [N, ...] of another shape, not finite, or outside its classes."""
    for path, space in leaves.items():
        if path not in values:
            raise DataError(f"the {what} lacks {path or 'a bare value'!r}; it has {sorted(map(str, values))}")
        rows = values[path]
        if type(rows) is list and all(type(row) is np.ndarray and row.shape == space.shape for row in rows):
            rows = np.stack(rows)
        if not (type(rows) is np.ndarray and rows.dtype.kind in "biuf" and rows.shape[1:] == space.shape):
            rows = _checked_rows(named(what, path), space, rows, place)
        if not all_members(space, rows):
            row = int(np.argmin(members(space, rows)))
            raise _wrong_value(f"{named(what, path)} of environment {place(row)}", rows[row], space)


def _checked_rows(name: str, space: Space, rows: Any, place: Place) -> np.ndarray:
    """``rows`` as an array, where it was none or has another shape; names the first row that is at fault."""
    if type(rows) is not list and np.ndim(rows) == 0:
        raise DataError(
            f"{name} of environment {place(0)} is {shown(rows)}, one is due for each environment; {WAY_OUT}"
        )
    for row, value in enumerate(rows):
        try:
            shape = numbers(value).shape
            if shape != space.shape:
                raise DataError(f"has shape {shape}, the space {space.shape}")
        except DataError as error:
            raise DataError(f"{name} of environment {place(row)} {error}; {WAY_OUT}") from error
    try:
        return numbers(rows).reshape(len(rows), *(space.shape or ()))
    except DataError as error:
        raise DataError(f"{name} {error}; {WAY_OUT}") from error


def check_single(space: Space, observation: Any, what: str, place: str) -> None:
    """Raise DataError unless the observation of one environment is of ``space``; ``place`` as for ``Place``."""
    try:
        values = leaf_values(space, observation)
    except DataError as error:
        raise DataError(f"{what} of environment {place}: {error}; {WAY_OUT}") from error
    leaves = read_leaves(space)
    check_observations(leaves, {path: [values[path]] for path in leaves}, what, lambda _: place)


def named(what: str, path: str) -> str:
    """``what`` with the path of the leaf it is, for messages; a space that is one leaf has the empty path."""
    return f"{what} {path!r}" if path else what


def _wrong_value(what: str, value: Any, space: Space) -> DataError:
    wrong = np.argwhere(~finite(np.asarray(value)))
    if not len(wrong):
        return DataError(f"{what} is {shown(value)}, outside {space}; {WAY_OUT}, or declare the space that it has")
    entry = [int(position) for position in wrong[0]]
    number = value[tuple(entry)]
    beyond = " (beyond float32)" if math.isfinite(number) else ""
    at = f" at entry {entry}" if entry else ""
    return DataError(
        f"{what} is {number}{beyond}{at}, not finite; look for a division by zero or an overflow in the environment or "
        "its wrappers, or clip the value in a wrapper"
    )


def episode_record(info: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return "r" and length "l" that a ``Monitor`` wrote into the last info of an episode; else None."""
    record = info.get("episode")
    if not isinstance(record, Mapping):
        return None
    values = [np.asarray(record.get(key)) for key in ("r", "l")]
    return record if all(value.size == 1 and value.dtype.kind in "biuf" for value in values) else None


def success_of(info: Mapping[str, Any], environment: int) -> bool | None:
    """Whether the episode that ended with ``info`` succeeded: ``is_success``, else ``success``; None without either.

    Some environments call other things "success": what is no number there is left alone. DataError for an
    ``is_success`` that is no number.
    """
    name = "success" if info.get("is_success") is None else "is_success"
    if info.get(name) is None:
        return None
    try:
        if np.isnan(value := numbers(np.reshape(info[name], ()))):
            raise ValueError("NaN is neither")
        return bool(value)
    except (DataError, ValueError) as error:
        if name == "success":
            return None
        raise DataError(
            f"info['is_success'] of environment {environment} is {shown(info[name])} where an episode ended; make it "
            "True where the episode succeeded, else False, or leave it out"
        ) from error


def to_tensor(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """``torch.as_tensor`` on a device, of arrays of any memory layout, in half its time for one that stays on the CPU.

    The tensor shares the memory of an array on the CPU, unless the type changes, torch cannot have the array as it
    is (read-only, with negative strides, or in another byte order), or its rows do not follow one another: kernels
    round by strides.
    """
    if not isinstance(values, np.ndarray):
        return torch.as_tensor(values, dtype=dtype, device=device).contiguous()
    try:
        tensor = torch.from_numpy(values if values.flags.writeable and values.flags.c_contiguous else _native(values))
    except (ValueError, TypeError):
        tensor = torch.from_numpy(_native(values))
    return tensor.to(device, dtype) if device.type != "cpu" or (dtype is not None and tensor.dtype != dtype) else tensor


def _native(values: np.ndarray) -> np.ndarray:
    """A copy of an array in the layout and the byte order of this machine, of a type that torch has."""
    longer = values.dtype.kind == "f" and values.dtype.itemsize > 8
    return np.array(values, np.float64 if longer else values.dtype.newbyteorder("="), order="C", subok=False)
