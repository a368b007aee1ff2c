"""Observations on their way in: nested values as leaves by path, batch axes, image layouts, NaN and infinity."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rltransformers.core.errors import DataError
from rltransformers.core.spaces import channels_first, is_image, leaf_spaces, space_from_leaves

Space = gym.Space[Any]


def tree_space(space: Space) -> Space:
    """A flat Dict keyed by paths ("camera/left") as the nested Dict it stands for; every other space as it is."""
    if isinstance(space, spaces.Dict) and any("/" in str(key) for key in space.spaces):
        return space_from_leaves(dict(space.spaces))
    return space


def fit_observation(space: Space, observation: Any) -> tuple[dict[str, np.ndarray], bool]:
    """Leaves by path with a batch axis in front, and whether the observation came as a batch.

    Images may come with channels last where the space has them first, and the other way round, as in Stable-Baselines3.

    Raises:
        DataError: when a leaf is missing, has another shape than the space, or is not finite.
    """
    found = nested_leaves(observation)
    arrays: dict[str, np.ndarray] = {}
    batched: set[bool] = set()
    for path, leaf in leaf_spaces(space).items():
        if path not in found:
            raise DataError(f"the observation lacks {path or 'a bare value'!r}; it has {sorted(found)}")
        array, is_batch = _fit_leaf(leaf, path, np.asarray(found[path]))
        arrays[path] = array
        batched.add(is_batch)
    if len(batched) > 1:
        raise DataError("some leaves of the observation have a batch axis and some have none")
    for path, array in arrays.items():
        refuse_not_finite(array, named("observation", path))
    return arrays, batched.pop()


def _fit_leaf(leaf: Space, path: str, array: np.ndarray) -> tuple[np.ndarray, bool]:
    shape = tuple(leaf.shape or ())
    for candidate in _layouts(leaf, array):
        if candidate.shape == shape:
            return candidate[None], False
        if candidate.shape[1:] == shape and candidate.ndim == len(shape) + 1:
            return candidate, True
    where = f"at {path!r} " if path else ""
    raise DataError(
        f"the observation {where}has shape {array.shape}, the space has {shape} (with or without a batch axis)"
    )


def _layouts(leaf: Space, array: np.ndarray) -> list[np.ndarray]:
    if not is_image(leaf) or len(leaf.shape or ()) != 3:
        return [array]
    source, target = (-1, -3) if channels_first(leaf) else (-3, -1)
    return [array, np.moveaxis(array, source, target)] if array.ndim >= 3 else [array]


def nested_leaves(value: Any, path: str = "") -> dict[str, Any]:
    """The leaves of nested dictionaries and tuples by path, whatever space they came from."""
    if isinstance(value, Mapping):
        items = [(str(name), part) for name, part in value.items()]
    elif isinstance(value, tuple):
        items = [(str(index), part) for index, part in enumerate(value)]
    else:
        return {path: value}
    leaves: dict[str, Any] = {}
    for name, part in items:
        leaves |= nested_leaves(part, f"{path}/{name}" if path else name)
    return leaves


def refuse_not_finite(array: np.ndarray, what: str, when: str = "") -> None:
    """Nothing when all numbers of a batch are finite.

    Raises:
        DataError: names the first environment with NaN or infinity.
    """
    index = first_not_finite(array)
    if index is not None:
        raise not_finite(what, f"{index}{when}", array[index])


def first_not_finite(array: np.ndarray) -> int | None:
    """The first row of a batch with NaN or infinity; None when there is none."""
    if array.dtype.kind != "f" or bool(np.isfinite(array).all()):
        return None
    return int(np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(1))[0])


def not_finite(what: str, environment: str, value: Any) -> DataError:
    """The error to raise for ``value``; ``environment`` is its number and, where known, the step."""
    return DataError(
        f"{what} of environment {environment} is not finite ({value!r}); look for a division by zero or an "
        "overflow in the environment or its wrappers"
    )


def named(what: str, path: str) -> str:
    """``what`` with the path of the leaf it is, for messages; a space that is one leaf has the empty path."""
    return f"{what} {path!r}" if path else what
