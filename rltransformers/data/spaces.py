"""Spaces guessed from arrays, for formats that do not store them, and the pieces in which large arrays are read."""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rltransformers.core.errors import DataError
from rltransformers.core.members import check_numeric, numbers
from rltransformers.core.spaces import map_leaves, space_of

MAX_GUESSED_CLASSES = 65_536  # of one leaf, all its components together
CHUNK_ROWS, CHUNK_BYTES = 32_768, 32 * 2**20
"""Checks, copies and statistics of a large array touch no more than this at a time, and at least one row."""


def chunks(array: Any, rows: int | None = None) -> Iterator[slice]:
    """The first rows, all by default, some at a time: whole chunks of HDF5 arrays, to decompress each of them once."""
    rows, stored = len(array) if rows is None else rows, (getattr(array, "chunks", None) or (1,))[0]
    most = min(CHUNK_ROWS, CHUNK_BYTES // max(math.prod(array.shape[1:]) * array.dtype.itemsize, 1))
    step = max(most // stored, 1) * stored
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def infer_space(values: Any, role: str, name: str) -> gym.Space[Any]:
    """The space of ``values`` [rows, ...], which may be nested dicts and tuples of arrays.

    Floats become an unbounded Box for observations; for actions a Box of [-1, 1], or of [-m, m] where m, the largest
    magnitude of that component, exceeds 1. Bytes of two or more axes per row become an image Box 0..255.
    Booleans become MultiBinary (Discrete(2) without a further axis). Other integers become Discrete, or MultiDiscrete
    with a further axis, with one class more than the largest value seen.

    Raises:
        DataError: for values that are no numbers, and where the space must be given: negative integers, and more than
            ``MAX_GUESSED_CLASSES`` classes, for each of which a network would get weights.
    """
    return space_of(map_leaves(partial(_leaf_space, role, name), values))


def _leaf_space(role: str, name: str, values: Any) -> gym.Space[Any]:
    try:
        rows = values if hasattr(values, "shape") and hasattr(values, "dtype") else numbers(values)
        check_numeric(rows.dtype)
    except DataError as error:
        raise DataError(f"{name}: {role} are not rows of numbers: {error}") from error
    shape, kind = tuple(rows.shape[1:]), rows.dtype.kind
    if rows.ndim == 0:
        raise DataError(f"{name}: {role} are a single number, not rows of numbers")
    if len(rows) == 0:
        raise DataError(f"{name}: {role} hold no rows; drop empty episodes")
    if kind == "f":
        if role != "actions":
            return spaces.Box(-np.inf, np.inf, shape, np.float32)
        # A number beyond float32 is reported later, with its place, by what stores it.
        largest = np.minimum(_largest_magnitude(rows), float(np.finfo(np.float32).max))
        bound = np.maximum(1.0, largest).astype(np.float32)
        return spaces.Box(-bound, bound, shape, np.float32)
    if kind == "b":
        return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape) if shape else spaces.Discrete(2)
    if rows.dtype == np.uint8 and len(shape) >= 2:
        return spaces.Box(0, 255, shape, np.uint8)
    largest, smallest = _extremes(rows)
    if smallest < 0:
        raise DataError(f"{name}: {role} are integers down to {smallest}; pass {role[:-1]}_space, it cannot be guessed")
    classes = sum(int(value) + 1 for value in largest.reshape(-1))
    if classes > MAX_GUESSED_CLASSES:
        raise DataError(
            f"{name}: {role} are integers up to {int(largest.max())}, which would be {classes:,} classes (at most "
            f"{MAX_GUESSED_CLASSES:,} are guessed); pass {role[:-1]}_space, or repair the value if it is an error"
        )
    return spaces.MultiDiscrete(largest.astype(np.int64) + 1) if shape else spaces.Discrete(int(largest) + 1)


def _extremes(rows: Any) -> tuple[npt.NDArray[Any], int]:
    """The largest integer per component, and the smallest of all."""
    largest, smallest = np.asarray(rows[0]), int(rows[0].max())
    for chunk in chunks(rows):
        part = np.asarray(rows[chunk])
        largest, smallest = np.maximum(largest, part.max(axis=0)), min(smallest, int(part.min()))
    return largest, smallest


def _largest_magnitude(rows: Any) -> npt.NDArray[np.float64]:
    """Per component, over the finite rows: faulty rows are reported later, with their place."""
    largest = np.zeros(rows.shape[1:])
    for chunk in chunks(rows):
        sizes = np.abs(np.asarray(rows[chunk]))
        largest = np.maximum(largest, np.max(sizes, axis=0, where=np.isfinite(sizes), initial=0.0))
    return largest
