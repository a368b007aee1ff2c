"""Spaces guessed from arrays, for formats that do not store them, and the pieces in which large arrays are read."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rltransformers.core.errors import DataError
from rltransformers.core.spaces import Space, leaf_spaces, leaf_values, map_leaves, space_from_leaves, space_of
from rltransformers.core.values import LARGEST_FLOAT, Array, Bools, check_numeric, numbers
from rltransformers.data.keys import check_leaves

LARGEST_NUMBER = 2.0**53
"""Of rewards and of numbers whose space is guessed: what is larger stands for a missing value or for an error."""
Allocate = Callable[[str, tuple[int, ...], np.dtype[Any]], Array]
"""File name, shape and type to an array."""
MAX_GUESSED_CLASSES = 65_536  # of one leaf, all its components together
CHUNK_ROWS, CHUNK_BYTES = 32_768, 32 * 2**20
"""Checks, copies and statistics of a large array touch no more than this at a time, and at least one row."""


def chunks(array: Any, rows: int | None = None) -> Iterator[slice]:
    """The first rows, all by default, some at a time: whole chunks of HDF5 arrays, to decompress each of them once."""
    rows, stored = len(array) if rows is None else rows, (getattr(array, "chunks", None) or (1,))[0]
    most = min(CHUNK_ROWS, CHUNK_BYTES // max(math.prod(array.shape[1:]) * array.dtype.itemsize, 1))
    step = max(most // stored, 1) * stored
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


class Sliced:
    """Base of arrays [rows, ...] that are read in slices, as an HDF5 data set is."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Any:
        if not isinstance(rows, slice):
            return self[rows : rows + 1][0]
        start, stop, _ = rows.indices(len(self))
        return self.read(start, max(start, stop))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self[:], dtype, copy=copy)

    def read(self, start: int, stop: int) -> Array:
        """The rows from ``start`` on and before ``stop``."""
        raise NotImplementedError


class Joined(Sliced):
    """Arrays [rows, ...] one behind the other as one; ValueError where their rows have different shapes."""

    def __init__(self, *parts: Any) -> None:
        self.parts = [lazy_numbers(part) for part in parts]
        shapes = list(dict.fromkeys(tuple(part.shape[1:]) for part in self.parts))
        if len(shapes) > 1 or any(len(part.shape) == 0 for part in self.parts):
            raise ValueError(f"rows of the shapes {shapes}")
        self.offsets = np.concatenate([[0], np.cumsum([len(part) for part in self.parts])]).astype(np.int64)
        self.dtype = np.result_type(*(part.dtype for part in self.parts))
        self.shape = (int(self.offsets[-1]), *shapes[0])

    def read(self, start: int, stop: int) -> Array:
        first, last = (int(np.searchsorted(self.offsets, row, side="right")) - 1 for row in (start, max(stop - 1, 0)))
        pieces = [np.empty((0, *self.shape[1:]), self.dtype)]
        for part, offset in zip(self.parts[first : last + 1], self.offsets[first:], strict=False):
            pieces.append(np.asarray(part[max(start - offset, 0) : max(stop - offset, 0)]))
        return np.concatenate(pieces)


def infer_space(values: Any, role: str, name: str) -> Space:
    """The space of ``values`` [rows, ...], which may be nested dicts and tuples of arrays.

    Floats become an unbounded Box for observations; for actions a Box of [-1, 1], or of [-m, m] where m, the largest
    magnitude of that component, exceeds 1. Bytes of two or more axes per row become an image Box 0..255.
    Booleans become MultiBinary (Discrete(2) without a further axis). Other integers become Discrete, or MultiDiscrete
    with a further axis, with one class more than the largest value seen.

    Raises:
        DataError: for values that are no numbers; for negative integers, numbers beyond ``LARGEST_NUMBER`` and more
            than ``MAX_GUESSED_CLASSES`` classes, whose space must be given.
    """
    return space_of(map_leaves(partial(_leaf_space, role, name), values))


@dataclass(frozen=True)
class Options:
    """Options of ``load_trajectories`` as every reader takes them, and where arrays are to live (see ``allocate``)."""

    name: str | None = None
    time_limit: int | None = None
    observation_space: Space | None = None
    action_space: Space | None = None
    observation_leaves: Sequence[str] | None = None
    split_on_discontinuity: bool = False
    columns: Mapping[str, Any] | None = None
    allocate: Allocate | None = None

    def with_spaces(self, source: Any) -> "Options":
        """The same with the spaces of a source, an environment or a buffer, where they have none."""
        names = "observation_space", "action_space"
        return replace(self, **{name: getattr(source, name) for name in names if getattr(self, name) is None})


def choose_spaces(options: Options, rows: Callable[[str], Any], name: str) -> tuple[Space, Space, dict[str, str]]:
    """Return both spaces, guessed from ``rows(role)`` where the options have none, and ``Trajectories.guesses``."""
    guesses: dict[str, str] = {}

    def guess(role: str) -> Space:
        values = rows(role)
        space = infer_space(values, role, name)
        doubts = (_doubt(role, leaf, leaf_values(space, values)[path]) for path, leaf in leaf_spaces(space).items())
        doubt = next((doubt for doubt in doubts if doubt is not None), None)
        guesses[f"{role[:-1]}_space"] = "" if doubt is None else f"{space} is a guess: {doubt}"
        return space

    space = options.observation_space
    space = guess("observations") if space is None else prune_space(space, options.observation_leaves)
    return space, options.action_space or guess("actions"), guesses


def _doubt(role: str, leaf: Space, values: Any) -> str | None:
    """Why a leaf that was guessed from ``values`` [rows, ...] may be another one; None where nothing says so."""
    rows = lazy_numbers(values)
    shape = tuple(rows.shape[1:])
    if isinstance(leaf, spaces.Box) and role != "actions":
        return None
    if len(shape) == 1 and shape[0] > 1 and _all_rows(rows, one_hot):
        return f"the {role} are one-hot; of classes they are the index, {role}.argmax(-1)"
    if isinstance(leaf, spaces.Discrete | spaces.MultiBinary) and rows.dtype.kind == "b":
        return None
    if isinstance(leaf, spaces.Discrete):
        return f"no class above {leaf.n - 1} occurs, and the environment may have more"
    if isinstance(leaf, spaces.MultiDiscrete) and rows.dtype == np.uint8:
        return f"the {role} are bytes, which may be numbers of Box(0, 255, {shape}, uint8) and no classes"
    if isinstance(leaf, spaces.MultiDiscrete) and shape == (1,):
        return f"the {role} hold one whole number each, for which most environments have Discrete({leaf.nvec[0]})"
    if isinstance(leaf, spaces.MultiDiscrete):
        return f"no classes above {(leaf.nvec - 1).tolist()} occur, and the environment may have more"
    if rows.dtype == np.uint8:
        return "the actions are bytes of several axes, as those of an image"
    if _all_rows(rows, _classes):
        return "all actions are small whole numbers; if they stand for classes, pass actions.astype(int)"
    if not shape:
        return "each action is a number without an axis, where most environments have Box(..., (1,))"
    if isinstance(leaf, spaces.Box) and (largest := float(leaf.high.max())) > 1.0:
        return (
            f"actions reach {largest:g}; where the environment takes less, as [-1, 1], it clips them, and so should "
            f"whoever prepares the data: {_beyond(rows)}; write np.clip(actions, -1, 1)"
        )
    return None


def _beyond(rows: Any) -> str:
    """Where actions [N, ...] lie beyond [-1, 1]: "entries [0, 2] in 12 of 900 steps"."""
    entries, steps = np.zeros(math.prod(rows.shape[1:]), bool), 0
    for chunk in chunks(rows):
        beyond = np.abs(np.asarray(rows[chunk])).reshape(-1, len(entries)) > 1
        entries |= beyond.any(0)
        steps += int(beyond.any(1).sum())
    return f"entries {np.flatnonzero(entries).tolist()[:8]} in {steps:,} of {len(rows):,} steps"


def _all_rows(rows: Any, true_of: Callable[[Array], Bools]) -> bool:
    return all(bool(true_of(np.asarray(rows[chunk])).all()) for chunk in chunks(rows))


def one_hot(rows: Array) -> Bools:
    """Which rows [N, D] have a one and else zeros."""
    ones = rows == 1
    return np.asarray(((rows == 0) | ones).all(axis=-1) & (ones.sum(axis=-1) == 1))


def _classes(rows: Array) -> Bools:
    return np.asarray((rows == np.trunc(rows)) & (rows >= 0) & (rows < 256))


def prune_space(space: Space, leaves: Sequence[str] | None) -> Space:
    """Keep only these leaves of a space; None keeps all."""
    if leaves is None:
        return space
    known = leaf_spaces(space)
    check_leaves(leaves, known)
    return space_from_leaves({path: leaf for path, leaf in known.items() if path in leaves})


def lazy_numbers(values: Any) -> Any:
    """Return ``numbers(values)``; arrays that are read from a file in slices stay there."""
    if not isinstance(getattr(values, "dtype", None), np.dtype) or isinstance(values, np.ma.MaskedArray):
        return numbers(values)
    check_numeric(values.dtype)
    return values


def _leaf_space(role: str, name: str, values: Any) -> Space:
    try:
        rows = lazy_numbers(values)
    except DataError as error:
        way_out = "; observation_leaves=[...] keeps the leaves that are" if role == "observations" else ""
        raise DataError(f"{name}: {role} are not rows of numbers: {error}{way_out}") from error
    shape, kind = tuple(rows.shape[1:]), rows.dtype.kind
    if rows.ndim == 0:
        raise DataError(f"{name}: {role} are a single number, not rows of numbers")
    if len(rows) == 0:
        raise DataError(f"{name}: {role} hold no rows; drop empty episodes")
    if 0 in shape:
        raise DataError(f"{name}: {role} have rows of shape {list(shape)}, which hold no number; drop the field")
    if kind == "f":
        largest = _largest_magnitude(rows)
        if LARGEST_NUMBER < float(np.max(largest, initial=0.0)) <= LARGEST_FLOAT:
            raise DataError(
                f"{name}: {role} reach {np.max(largest):g}, so float32 tells no others apart; repair the value, or "
                f"pass {role[:-1]}_space if it is one"
            )
        if role != "actions":
            return spaces.Box(-np.inf, np.inf, shape, np.float32)
        # A number beyond float32 is reported later, with its place, by what stores it.
        largest = np.minimum(largest, LARGEST_FLOAT)
        bound = np.maximum(1.0, largest).astype(np.float32)
        return spaces.Box(-bound, bound, shape, np.float32)
    if kind == "b":
        return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape) if shape else spaces.Discrete(2)
    if rows.dtype == np.uint8 and len(shape) >= 2:
        return spaces.Box(0, 255, shape, np.uint8)
    largest, smallest = _extremes(rows)
    bounds = "-numpy.inf, numpy.inf" if role == "observations" else f"{smallest}, {int(largest.max())}"
    way_out = f"pass {role[:-1]}_space, for numbers gymnasium.spaces.Box({bounds}, {shape})"
    if smallest < 0:
        raise DataError(f"{name}: {role} are integers down to {smallest}, which are no classes; {way_out}")
    classes = sum(int(value) + 1 for value in largest.reshape(-1))
    if classes > MAX_GUESSED_CLASSES:
        raise DataError(
            f"{name}: {role} are integers up to {int(largest.max())}, which would be {classes:,} classes (at most "
            f"{MAX_GUESSED_CLASSES:,} are guessed); repair the value if it is an error, or {way_out}"
        )
    return spaces.MultiDiscrete(largest.astype(np.int64) + 1) if shape else spaces.Discrete(int(largest) + 1)


def _extremes(rows: Any) -> tuple[Array, int]:
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
