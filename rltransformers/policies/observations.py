"""Input of an agent: observations as leaves by path, rewards, episode starts; all of it checked.

Axis letter: B environments.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from torch import Tensor

from rltransformers.core.errors import ConfigError, DataError
from rltransformers.core.pictures import as_picture, is_image
from rltransformers.core.spaces import Space, leaf_spaces, nested_leaves, space_from_leaves
from rltransformers.core.values import check_observations, finite, flags, members, named, numbers

TASK = "task"
STATELESS_CALLS = 50  # calls of ``predict`` without a state after which a user is told of it


def tree_space(space: Space) -> Space:
    """A flat Dict keyed by paths ("camera/left") as the nested Dict it stands for; every other space as it is."""
    if isinstance(space, spaces.Dict) and any("/" in str(key) for key in space.spaces):
        return space_from_leaves(dict(space.spaces))
    return space


def first_task(space: Space, tasks: int | None) -> int | None:
    """Smallest number of the leaf that says which of so many tasks an episode is; ConfigError for no such leaf."""
    if tasks is None:
        return None
    leaf = leaf_spaces(space).get(TASK)
    if not isinstance(leaf, spaces.Discrete) or leaf.n != tasks:
        raise ConfigError(
            f"the backbone reads which of {tasks} tasks an episode is: the observation space needs a key {TASK!r} that "
            f"is Discrete({tasks}), got {leaf}; or give the prior a fixed task"
        )
    return int(leaf.start)


def read_task(observations: Mapping[str, Tensor], first: int) -> Tensor:
    """Tasks counted from 0, of leaves by path; ``first`` is that of ``first_task``."""
    return observations[TASK].long() - first


def fit_observation(leaves: Mapping[str, Space], observation: Any) -> tuple[dict[str, np.ndarray], bool]:
    """Leaves by path with a batch axis in front, and whether the observation came as a batch.

    Images may come with channels last where the space has them first, and the other way round, as in Stable-Baselines3.
    Raises DataError for a leaf that is missing, of another shape, not finite (in float32), or outside of the space.
    """
    found = nested_leaves(observation)
    arrays: dict[str, np.ndarray] = {}
    batched: set[bool] = set()
    for path, leaf in leaves.items():
        if path not in found:
            # The commonest mistake: reset() of a VecEnv returns observations, that of an environment a pair.
            pair = "; of what reset() and step() of Gymnasium return, the observation is the first"
            hint = pair if isinstance(observation, tuple) else ""
            raise DataError(f"the observation lacks {path or 'a bare value'!r}; it has {sorted(found)}{hint}")
        array, shape = _numbers(found[path], "the observation", path), tuple(leaf.shape or ())
        given, is_batch = array.shape, array.ndim > len(shape)
        if given[-len(shape) :] != shape and len(shape) == 3 and array.ndim >= 3 and is_image(leaf):
            array = np.moveaxis(array, *((-1, -3) if as_picture(leaf).channels_first else (-3, -1)))
        if array.shape[int(is_batch) :] != shape:
            where = f"at {path!r} " if path else ""
            raise DataError(
                f"the observation {where}has shape {given}, the space has {shape} (with or without a batch axis)"
            )
        arrays[path] = array if is_batch else array[None]
        batched.add(is_batch)
    if len(batched) > 1:
        raise DataError("some leaves of the observation have a batch axis and some have none")
    if len({len(array) for array in arrays.values()}) > 1:
        raise DataError(f"leaves of the observation have {sorted({len(array) for array in arrays.values()})} rows")
    if not all(len(array) for array in arrays.values()):
        raise DataError("the batch of observations has no row; give at least one")
    check_observations(leaves, arrays)
    return arrays, batched.pop()


def fit_sequences(leaves: Mapping[str, Space], values: Any, what: str) -> tuple[dict[str, np.ndarray], tuple[int, int]]:
    """Leaves by path [B T, ...] of B sequences of T steps, every leaf [B, T, ...], and (B, T).

    Raises DataError for a leaf that is missing, holds no numbers, or has not these two axes in front.
    """
    found, arrays, shapes = nested_leaves(values), {}, set()
    for path, leaf in leaves.items():
        if path not in found:
            raise DataError(f"{what} lack {path or 'a bare value'!r}; they have {sorted(found)}")
        array = _numbers(found[path], what, path)
        if array.ndim != 2 + len(leaf.shape or ()):
            due = ", ".join(["B", "T", *map(str, leaf.shape or ())])
            raise DataError(
                f"{named(what, path)} of B sequences of T steps have shape [{due}], got {array.shape}; one sequence is "
                "[1, T, ...]"
            )
        shapes.add(array.shape[:2])
        arrays[path] = array.reshape(-1, *array.shape[2:])
    if len(shapes) > 1 or 0 in next(iter(shapes)):
        raise DataError(f"leaves of {what} have {sorted(shapes)} sequences and steps; give the same, one at least")
    return arrays, shapes.pop()


def fit_action_sequences(leaves: Mapping[str, Space], actions: Any, rows: int, steps: int) -> dict[str, np.ndarray]:
    """Leaves by path [B T, ...] of actions taken in B sequences of T steps; those of a Box may lie outside it.

    Raises DataError as ``fit_sequences``, for other sequences than ``rows`` of ``steps``, and outside of the space.
    """
    flat, shape = fit_sequences(leaves, actions, "actions")
    if shape != (rows, steps):
        raise DataError(f"observations are of {rows} sequences of {steps} steps, actions of {shape[0]} of {shape[1]}")
    for path, leaf in leaves.items():
        good = members(leaf, flat[path])
        if not good.all():
            sequence, step = divmod(int(np.argmin(good)), steps)
            value = flat[path][sequence * steps + step].tolist()
            raise DataError(f"{named('action', path)} of step {step} of sequence {sequence} is {value}, outside {leaf}")
    return flat


def flat_masks(masks: Any, rows: int, steps: int) -> np.ndarray | None:
    """Masks of sequences [B, T, M] as [B T, M], None for none; raise DataError for other sequences."""
    if masks is None:
        return None
    array = _numbers(masks, "action_masks")
    if array.shape[:2] != (rows, steps) or array.ndim < 3:
        raise DataError(f"action_masks have shape [B, T, M], here ({rows}, {steps}, M), got {array.shape}")
    return array.reshape(rows * steps, *array.shape[2:])


def flat_steps(values: Any, rows: int, steps: int, what: str) -> np.ndarray:
    """One number for every step [B, T], or one for all, as [B T]; raise DataError for other shapes and no numbers."""
    array = _numbers(values, what)
    if array.shape not in ((), (rows, steps), (rows, steps, 1)):
        raise DataError(f"{what} must be a number, or one per step [B, T], here {rows, steps}; got shape {array.shape}")
    if not (good := finite(array)).all():
        raise DataError(f"{what} holds {array[~good][0]}, which is not finite; give a number for every step")
    return np.broadcast_to(array.reshape(array.shape[:2]), (rows, steps)).reshape(-1)


def fit_rewards(reward: Any, start: np.ndarray) -> np.ndarray:
    """Rewards of the last step [B] in float64; those where an episode starts are not read, and 0 here.

    Raises DataError for what is no number, not one per environment, or not finite (in float32).
    """
    rewards = np.where(start, 0.0, fit_vector(reward, len(start), "reward"))
    good = finite(rewards)
    if not good.all():
        row = int(np.argmin(good))
        raise DataError(
            f"reward of environment {row} is not finite ({rewards[row]}); look for a division by zero or an overflow "
            "in the environment or its wrappers"
        )
    return rewards


def fit_vector(values: Any, rows: int, what: str) -> np.ndarray:
    """One number for all, or one per environment, as float64 [B]; raise DataError for anything else."""
    array = _numbers(values, what)
    if array.shape not in ((), (1,), (rows,), (rows, 1)):
        raise DataError(f"{what} must be a number, or one per environment ({rows}); got shape {array.shape}")
    return np.broadcast_to(array.reshape(-1), (rows,)).astype(np.float64)


def fit_starts(episode_start: Any, rows: int, *, all_begin: bool = False) -> np.ndarray:
    """Episode starts as booleans [B]; None means nowhere. With ``all_begin`` they are checked, and True everywhere.

    Raises DataError for what is neither True nor False (0 or 1), or not one per environment.
    """
    if episode_start is None:
        return np.full(rows, all_begin)
    try:
        start = flags(episode_start).reshape(-1)
    except DataError as error:
        raise DataError(f"episode_start {error}") from error
    if len(start) != rows and np.ndim(episode_start):
        raise DataError(f"episode_start has {len(start)} entries for {rows} environments; give one boolean for each")
    return np.broadcast_to(start | all_begin, (rows,)).copy()


class StateWatch:
    """Warns once where ``predict`` is called again and again without the state that it returned.

    The first step of an episode has none, and a batch of observations may have nothing to do with the last; many in a
    row without ``episode_start`` are most likely a loop whose every step is taken for a first one.
    """

    def __init__(self) -> None:
        self._calls = 0

    def __call__(self, state: Any, episode_start: Any) -> None:
        if self._calls == STATELESS_CALLS:
            return
        self._calls = self._calls + 1 if state is None and episode_start is None else 0
        if self._calls == STATELESS_CALLS:
            warnings.warn(
                f"predict was called {STATELESS_CALLS} times in a row with state=None, so each of these steps was the "
                "first of an episode to the policy, without memory; pass what it returned, predict(observation, state, "
                "...), or model.actor(), which remembers by itself: actor.reset(), then actor(observation, reward)",
                stacklevel=4,
            )


def check_state(state: Any, kind: type, rows: int) -> None:
    """Raise ConfigError unless ``state`` is one of ``kind``, as ``predict`` returned it, of ``rows`` environments."""
    if not isinstance(state, kind):
        raise ConfigError(f"state must be what predict returned, or None; got {type(state).__name__}")
    count = state.batch_size  # type: ignore[attr-defined]
    if count != rows:
        raise ConfigError(
            f"the state belongs to {count} environments, the observation to {rows}; pass state=None to begin anew"
        )


def _numbers(values: Any, what: str, path: str = "") -> np.ndarray:
    try:
        return numbers(values)
    except DataError as error:
        raise DataError(f"{named(what, path)} {error}") from error
