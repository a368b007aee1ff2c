"""Checks of trajectories: layout, finite numbers, classes inside their spaces, flags only at the ends of episodes.

Axis letters: E episodes, N steps of all episodes, T steps of one episode.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from gymnasium import spaces

from rltransformers.core.errors import OUR_ERRORS, DataError, did_you_mean, error_line
from rltransformers.core.spaces import Space, leaf_spaces, stored_dtype
from rltransformers.core.values import Array, Bools, action_bounds, all_members, members
from rltransformers.data.spaces import chunks

if TYPE_CHECKING:
    from rltransformers.data.trajectories import Trajectories


REWARD = spaces.Box(-np.inf, np.inf, (), np.float32)


def check_layout(data: "Trajectories") -> None:
    """Raise DataError unless offsets, leaves, shapes and types are those that the spaces ask for."""
    name, offsets = data.name, data.offsets
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu":
        raise DataError(f"{name}: offsets are {offsets.dtype} {offsets.shape}, expected int64 (episodes + 1,)")
    if len(offsets) < 2:
        raise DataError(f"{name}: holds no episode; nothing can be learned from it")
    lengths = np.diff(offsets.astype(np.int64))
    if lengths.min() <= 0 or offsets[0] != 0:
        raise DataError(f"{name}: episode {int(lengths.argmin())} is empty; drop episodes without steps")
    steps, episodes = int(offsets[-1]), len(offsets) - 1
    for kind, leaves, space, rows in (
        ("observations", data.observations, data.observation_space, steps + episodes),
        ("actions", data.actions, data.action_space, steps),
    ):
        expected = leaf_spaces(space)
        if list(leaves) != list(expected):
            wrong = next(iter(set(leaves) ^ set(expected)), "")
            raise DataError(
                f"{name}: {kind} have leaves {list(leaves)}, the space {list(expected)}; "
                f"{did_you_mean(wrong, expected)}"
            )
        for path, leaf in expected.items():
            shape, dtype = (rows, *(leaf.shape or ())), stored_dtype(leaf)
            if leaves[path].shape != shape or leaves[path].dtype != dtype:
                raise DataError(
                    f"{name}: {leaf_name(kind, path)} is {leaves[path].dtype} {leaves[path].shape}; {steps} steps of "
                    f"{episodes} episodes in {leaf} need {dtype} {shape}"
                )
    for kind, dtype in (("rewards", np.dtype("f4")), ("terminations", np.dtype("?")), ("truncations", np.dtype("?"))):
        array = getattr(data, kind)
        if array.shape != (steps,) or array.dtype != dtype:
            raise DataError(f"{name}: {kind} are {array.dtype} {array.shape}, expected {dtype} ({steps},)")


def check_contents(data: "Trajectories") -> None:
    """Raise DataError unless all numbers are finite and in their spaces, and episodes end where flags are set."""
    offsets = data.offsets
    for path, leaf in leaf_spaces(data.observation_space).items():
        _check_leaf(data, "observations", path, leaf, data.observations[path], offsets + np.arange(len(offsets)))
    check_actions(data, data.action_space)
    _check_leaf(data, "rewards", "", REWARD, data.rewards, offsets)
    last = np.zeros(data.steps, bool)
    last[offsets[1:] - 1] = True
    wrong = np.flatnonzero((data.terminations | data.truncations) != last)
    if wrong.size:
        episode, step = locate(int(wrong[0]), offsets)
        raise DataError(
            f"{data.name}: episode {episode} is terminated or truncated at step {step} but has "
            f"{data.lengths[episode]} steps; end episodes where their flags are set"
        )


def check_actions(data: "Trajectories", space: Space) -> None:
    """Raise DataError unless all actions lie in the space, up to the rounding of floats (see ``members``)."""
    for path, leaf in leaf_spaces(space).items():
        _check_leaf(data, "actions", path, leaf, data.actions[path], data.offsets)


def _check_leaf(data: "Trajectories", kind: str, path: str, space: Space, rows: Array, bounds: Array) -> None:
    for chunk in chunks(rows):
        part = np.asarray(rows[chunk])
        if kind != "actions" and all_members(space, part):
            continue
        inside = members(space, part, bounded=kind == "actions")
        if not inside.all():
            row = int(np.argmin(inside))
            episode, step = locate(chunk.start + row, bounds)
            raise DataError(
                f"{data.name}: {leaf_name(kind, path)} of episode {episode}, step {step} is "
                f"{np.array2string(part[row], threshold=8)}, {_fault(space, part[row])}"
            )


def _fault(space: Space, row: Array) -> str:
    """Say what is wrong with a row that is no member, and the way out."""
    if row.dtype.kind == "f" and not np.isfinite(row).all():
        return "NaN or infinity; drop that episode or repair the recording"
    if not isinstance(space, spaces.Box):
        return f"outside {space}; pass the space that the data come from"
    low, high = action_bounds(space)
    at = tuple(np.argwhere((row < low) | (row > high))[0])
    entry = f" at entry {[int(index) for index in at]}" if at else ""
    return (
        f"outside the bounds {space.low[at]}..{space.high[at]}{entry}; clip the actions as the environment did, "
        f"or give data and model the action_space that they come from"
    )


def locate(row: int, bounds: Array) -> tuple[int, int]:
    """Episode and step of a row, where episode e begins in row ``bounds[e]``."""
    episode = int(np.searchsorted(bounds, row, side="right")) - 1
    return episode, row - int(bounds[episode])


def check_layout_of(space: Space, stored: Space, role: str, name: str, guessed: bool = False) -> None:
    """Raise DataError unless a space is that of the data, but for bounds and width of Boxes and for further classes."""
    if not takes_layout(space, stored):
        hint = f"it was guessed: load the source again with {role}_space" if guessed else "use matching data"
        raise DataError(f"{name}: the {role} space of the data is {stored}, expected {space}; {hint}")


def takes_layout(space: Space, stored: Space) -> bool:
    """Whether a space is a stored one, but for bounds and width of Boxes and for further classes."""
    left, right = leaf_spaces(space), leaf_spaces(stored)
    return left.keys() == right.keys() and all(_same_leaf(leaf, right[path]) for path, leaf in left.items())


def _same_leaf(leaf: Space, stored: Space) -> bool:
    match leaf, stored:
        case spaces.Box(), spaces.Box():
            return leaf.shape == stored.shape and np.dtype(leaf.dtype).kind == np.dtype(stored.dtype).kind
        case spaces.Discrete(), spaces.Discrete():
            return bool(leaf.start <= stored.start and stored.start + stored.n <= leaf.start + leaf.n)
        case spaces.MultiDiscrete(), spaces.MultiDiscrete():
            return leaf.shape == stored.shape and bool(
                (leaf.start <= stored.start).all() and (stored.start + stored.nvec <= leaf.start + leaf.nvec).all()
            )
    return leaf == stored


def check_order(data: "Trajectories", names: Mapping[str, Mapping[str, Sequence[str]]] | None, whose: str) -> None:
    """Raise DataError where data call the components of a leaf like ``names`` does, in another order."""
    for kind, leaves in (names or {}).items():
        for path, expected in leaves.items():
            found = data.metadata.get("names", {}).get(kind, {}).get(path, expected)
            if list(found) != list(expected) and sorted(found) == sorted(expected):
                raise DataError(
                    f"{data.name}: the components of {leaf_name(kind, path)} are {found}, in {whose} {expected}; read "
                    "them in that order, which load_trajectories(..., columns=...) says"
                )


def check_time_limit(lengths: Array, time_limit: int | None, name: str) -> None:
    """Raise DataError for episodes [E] of more than ``time_limit`` steps."""
    if time_limit is not None and (longer := np.flatnonzero(lengths > time_limit)).size:
        e = int(longer[0])
        raise DataError(
            f"{name}: episode {e} has {int(lengths[e]):,} steps, more than time_limit={time_limit:,}, the step "
            "limit of the environment; correct the limit, or where resets are not marked, the ends of episodes"
        )


def jumps(next_observations: Array, following: Array) -> Bools:
    """Return where next observations [T, ...] differ from the observations [T, ...] of the following rows.

    By more than 1e-6, and where one of them is stored in float32 by more than this rounds. DataError for another shape.
    """
    if next_observations.shape != following.shape:
        raise DataError(
            f"next_observations have rows of shape {next_observations.shape[1:]}, observations {following.shape[1:]}; "
            f"give what was seen next, or leave them out"
        )
    difference = np.abs(np.asarray(next_observations, np.float64) - np.asarray(following, np.float64))
    differs, types = np.asarray(difference > 1e-6), {next_observations.dtype, following.dtype}
    if len(types) == 2 and any(each.kind == "f" and each.itemsize < 8 for each in types):
        differs[differs] = difference[differs] > np.finfo(np.float32).eps * np.abs(following[differs])
    return np.asarray(differs.any(axis=tuple(range(1, difference.ndim))))


def leaf_name(kind: str, path: str) -> str:
    """Name a leaf as messages do: observations['camera']."""
    return f"{kind}[{path!r}]" if path else kind


@contextmanager
def damage(what: str, way_out: str) -> Iterator[None]:
    """Turn errors of the block that are not ours, as libraries raise them for edited files, into a DataError."""
    try:
        yield
    except OUR_ERRORS:
        raise
    except Exception as error:
        raise DataError(f"{what} ({error_line(error)}); {way_out}") from error


@contextmanager
def prefixing(where: str) -> Iterator[None]:
    """Begin the message of a DataError of the block with ``where``."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{where} {error}") from error
