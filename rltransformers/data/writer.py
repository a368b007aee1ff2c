"""Arrays of trajectories, filled episode by episode or from flat arrays; sizes are known beforehand."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rltransformers.core.errors import DataError
from rltransformers.core.spaces import SUPPORTED_LEAVES, Space, check_supported, leaf_spaces, leaf_values, stored_dtype
from rltransformers.core.values import LARGEST_FLOAT, Array, Bools, check_numeric, flags, numbers
from rltransformers.data.checks import REWARD, check_time_limit, leaf_name, prefixing
from rltransformers.data.spaces import LARGEST_NUMBER, Options, chunks
from rltransformers.data.trajectories import UNKNOWN, Leaves, Trajectories


class TrajectoryWriter:
    """Fills preallocated arrays, with ``add`` episode by episode or with ``fill`` all at once.

    Args:
        lengths: steps of each episode [E]; DataError for more than the time limit of the options.
        name: how messages call the data.
        options: those that say where the arrays live, and the time limit.
    """

    def __init__(
        self, lengths: Sequence[int] | Array, observation_space: Space, action_space: Space, name: str, options: Options
    ) -> None:
        numeric = [p for p, leaf in leaf_spaces(observation_space).items() if p and isinstance(leaf, SUPPORTED_LEAVES)]
        way_out = f"keep the others with observation_leaves={numeric}" if numeric else "encode it as one of these"
        check_supported(observation_space, f"{name}: observation", way_out)
        check_supported(action_space, f"{name}: action", "encode it as one of these")
        check_time_limit(np.asarray(lengths), options.time_limit, name)
        self.name, self.time_limit, allocate = name, options.time_limit, options.allocate
        self.spaces = (observation_space, action_space)
        self.offsets = np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))]).astype(np.int64)
        steps, episodes = int(self.offsets[-1]), len(self.offsets) - 1

        def make(file: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
            try:
                return np.empty(shape, dtype) if allocate is None else allocate(file, shape, dtype)
            except (MemoryError, ValueError, OverflowError) as error:
                raise DataError(
                    f"{name}: {steps:,} steps do not fit into memory ({error}); pass cache=folder, or check the source"
                ) from error

        def leaves(kind: str, space: Space, rows: int) -> Leaves:
            return {
                path: make(f"{kind}.{i}.npy", (rows, *(leaf.shape or ())), stored_dtype(leaf))
                for i, (path, leaf) in enumerate(leaf_spaces(space).items())
            }

        self.observations = leaves("observations", observation_space, steps + episodes)
        self.actions = leaves("actions", action_space, steps)
        self.rewards = make("rewards.npy", (steps,), np.dtype(np.float32))
        self.terminations = make("terminations.npy", (steps,), np.dtype(bool))
        self.truncations = make("truncations.npy", (steps,), np.dtype(bool))
        self.final_observations = self.has_rewards = True
        self._next = 0

    def add(self, observations: Any, actions: Any, rewards: Any, terminations: Any, truncations: Any) -> None:
        """Write the next episode: observations of T + 1 rows, or T when the last one is unknown; the others of T.

        Rewards are None where none were logged; a single flag is that of the last step.
        """
        e = self._next
        start, end = int(self.offsets[e]), int(self.offsets[e + 1])
        length = end - start
        for path, rows in self._rows("observations", self.spaces[0], observations, length, length + 1).items():
            target = self.observations[path]
            target[start + e : start + e + len(rows)] = rows
            if len(rows) == length:
                self.final_observations = False
                target[end + e] = target[end + e - 1]
        for path, rows in self._rows("actions", self.spaces[1], actions, length).items():
            self.actions[path][start:end] = rows
        self.has_rewards = rewards is not None
        rewards = np.zeros(length) if rewards is None else rewards
        self.rewards[start:end] = self._rows("rewards", REWARD, rewards, length)[""]
        self.terminations[start:end] = self._flags("terminations", terminations, length)
        self.truncations[start:end] = self._flags("truncations", truncations, length)
        self._next += 1

    def fill(
        self,
        observations: Mapping[str, Any],
        actions: Mapping[str, Any],
        rewards: Any,
        terminations: Bools,
        truncations: Bools,
        next_observations: Mapping[str, Any] | None = None,
    ) -> None:
        """Write all episodes from flat arrays of N rows by leaf path, in pieces: files may be larger than memory.

        Args:
            rewards: [N], or None where none were logged.
            terminations, truncations: [N].
            next_observations: only the last of each episode is read; None repeats its last observation instead.
        """
        lasts = self.offsets[1:] - 1
        for path, leaf in leaf_spaces(self.spaces[0]).items():
            target = self.observations[path]
            for chunk, rows in self._chunks("observations", path, leaf, observations[path]):
                steps = np.arange(chunk.start, chunk.stop)
                target[steps + np.searchsorted(self.offsets, steps, side="right") - 1] = rows
                if next_observations is None:
                    _write_last(target, lasts, chunk, rows)
            if next_observations is not None:
                for chunk, rows in self._chunks("next_observations", path, leaf, next_observations[path]):
                    _write_last(target, lasts, chunk, rows)
        for path, leaf in leaf_spaces(self.spaces[1]).items():
            for chunk, rows in self._chunks("actions", path, leaf, actions[path]):
                self.actions[path][chunk] = rows
        self.has_rewards = rewards is not None
        rewards = np.zeros(len(self.rewards)) if rewards is None else rewards
        for chunk, rows in self._chunks("rewards", "", REWARD, rewards):
            self.rewards[chunk] = rows
        self.terminations[:], self.truncations[:] = terminations, truncations
        self.final_observations = next_observations is not None
        self._next = len(lasts)

    def _chunks(self, kind: str, path: str, space: Space, rows: Any) -> Iterator[tuple[slice, Array]]:
        """Yield pieces of a flat array in the stored type of its leaf, and where they stand."""
        for chunk in chunks(rows):
            with prefixing(f"{self.name}: {leaf_name(kind, path)}"):
                fitted = fit_leaf(space, np.asarray(rows[chunk]), chunk.start)
            yield chunk, fitted

    def _rows(self, kind: str, space: Space, value: Any, *lengths: int) -> Leaves:
        """Rows of every leaf of the next episode by path, in the stored type; ``lengths`` of them fit."""
        path, fault = "", "do not fit the space: "
        fitted: Leaves = {}
        try:
            leaves, fault = leaf_values(space, value), ""
            for path, leaf in leaf_spaces(space).items():
                rows = fitted[path] = fit_leaf(leaf, numbers(leaves[path]))
                if len(rows) not in lengths:
                    fitting = f"; {' or '.join(map(str, lengths))} fit" if len(lengths) > 1 else ""
                    raise DataError(f"has {len(rows)} rows for {lengths[0]} steps{fitting}")
        except DataError as error:
            raise DataError(f"{self._named(kind, path)} {fault}{error}") from error
        return fitted

    def _flags(self, kind: str, value: Any, length: int) -> Bools:
        """Flags [T] of the next episode; one number speaks for its last step only."""
        try:
            marks = column(flags(value))
            if marks.ndim == 0:
                marks = np.append(np.zeros(length - 1, bool), marks)
            if len(marks) != length:
                raise DataError(f"has {len(marks)} rows for {length} steps")
        except DataError as error:
            raise DataError(f"{self._named(kind)} {error}") from error
        return marks

    def _named(self, kind: str, path: str = "") -> str:
        return f"{self.name}: {leaf_name(kind, path)} of episode {self._next}"

    def finish(self, metadata: Mapping[str, Any], **facts: Any) -> Trajectories:
        """Return the checked trajectories (see ``mark_ends``); ``facts`` are further fields of ``Trajectories``.

        Warns of data without rewards, which are zeros then.
        """
        assert self._next == len(self.offsets) - 1, "fewer episodes were added than announced"
        mark_ends(self.terminations, self.truncations, self.offsets, self.time_limit)
        if not self.has_rewards:
            metadata = {**metadata, "rewards": UNKNOWN}
            warnings.warn(
                f"{self.name}: has no rewards, so no return can be asked for; clone these data with mode='bc'",
                stacklevel=2,
            )
        return Trajectories(
            self.observations,
            self.actions,
            self.rewards,
            self.terminations,
            self.truncations,
            self.offsets,
            *self.spaces,
            name=self.name,
            final_observations=self.final_observations,
            metadata=metadata,
            **facts,
        )


def mark_ends(terminations: Bools, truncations: Bools, offsets: Array, time_limit: int | None) -> None:
    """Mark, in flags [N], episodes of exactly ``time_limit`` steps and those that end without a flag as truncated.

    Many exporters do not tell terminations and truncations apart.
    """
    lasts = offsets[1:] - 1
    terminations[lasts[np.diff(offsets) == time_limit]] = False
    truncations[lasts] |= ~terminations[lasts]


def _write_last(target: Array, lasts: npt.NDArray[np.int64], chunk: slice, rows: Array) -> None:
    """Write the rows behind those last steps of episodes that lie in the chunk."""
    episodes = np.arange(*np.searchsorted(lasts, [chunk.start, chunk.stop]))
    target[lasts[episodes] + episodes + 1] = rows[lasts[episodes] - chunk.start]


def fit_leaf(space: Space, rows: Array, first: int = 0) -> Array:
    """Convert rows [R, ...] to the stored type of the leaf; drop a surplus axis of size 1, change no value.

    Raises DataError for another shape, fractions in place of integers, and a number beyond the stored type; ``first``
    is the number of the first row in the message.
    """
    shape, dtype = space.shape or (), stored_dtype(space)
    if rows.ndim == len(shape) + 2 and rows.shape[-1] == 1 and rows.shape[1:-1] == shape:
        rows = rows[..., 0]
    if rows.shape[1:] != shape or rows.ndim == 0:
        raise DataError(f"has rows of shape {rows.shape[1:]}, the space {space} asks for {shape}")
    check_numeric(rows.dtype)
    if space is REWARD and rows.dtype.itemsize > 1:
        sizes = np.abs(rows, dtype=np.float64)
        beyond = (sizes > LARGEST_NUMBER) & (sizes <= LARGEST_FLOAT)
        _refuse(rows, beyond, f"is beyond {LARGEST_NUMBER:g}, so float32 tells no others apart; repair it", first)
    if rows.dtype == dtype:
        return rows
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            fitted = rows.astype(dtype)
        _refuse(rows, np.isinf(fitted) & np.isfinite(rows), f"is beyond the largest {dtype}; scale it down", first)
        return fitted
    if rows.dtype.kind == "f":
        _refuse(rows, rows != np.trunc(rows), f"is not an integer, the space is {space}", first)
    lowest, highest = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    beyond = (rows < lowest) | (rows >= float(highest) + 1 if rows.dtype.kind == "f" else rows > highest)
    _refuse(rows, beyond, f"is outside {lowest}..{highest}, the space is {space}", first)
    return rows.astype(dtype)


def _refuse(rows: Array, wrong: Array, fault: str, first: int) -> None:
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0])
        raise DataError(f"holds the number {rows[place]!s} in row {first + place[0]}, which {fault}")


def column(values: Array) -> Array:
    """Return [N] of (N,) or (N, 1), a single number as it is; raise DataError for other shapes."""
    if values.ndim == 2 and values.shape[1] == 1:
        return values[:, 0]
    if values.ndim > 1:
        raise DataError(f"has shape {values.shape}, one number per step is needed")
    return values
