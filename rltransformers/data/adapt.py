"""The same episodes with fewer leaves, in other spaces, or under a step limit."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from gymnasium import spaces

from rltransformers.core.errors import DataError
from rltransformers.core.spaces import Space, leaf_spaces
from rltransformers.data.checks import check_actions, check_time_limit
from rltransformers.data.spaces import prune_space
from rltransformers.data.trajectories import Leaves, Trajectories
from rltransformers.data.writer import fit_leaf


def keep_leaves(data: Trajectories, leaves: Sequence[str] | None) -> Trajectories:
    """Keep only these leaves of the observations; None keeps all.

    Raises:
        ConfigError: for a leaf that is not there.
    """
    if leaves is None:
        return data
    space = prune_space(data.observation_space, leaves)
    observations = {path: data.observations[path] for path in leaf_spaces(space)}
    return replace(data, observations=observations, observation_space=space, verify=False)


def truncated_at(data: Trajectories, time_limit: int | None) -> Trajectories:
    """Count episodes of ``time_limit`` steps as truncated.

    Raises:
        DataError: for longer ones.
    """
    if time_limit is None:
        return data
    check_time_limit(data.lengths, time_limit, data.name)
    ends = data.offsets[1:][data.lengths == time_limit] - 1
    terminations, truncations = np.array(data.terminations), np.array(data.truncations)
    terminations[ends], truncations[ends] = False, True
    return replace(data, terminations=terminations, truncations=truncations, verify=False)


def in_spaces(data: Trajectories, observation_space: Space | None, action_space: Space | None) -> Trajectories:
    """Present the data in spaces that differ in bounds, width of numbers and further classes alone; None: as they are.

    Raises:
        DataError: for spaces of another layout, actions outside theirs, and numbers beyond the type that they store.
    """
    if observation_space is None and action_space is None:
        return data
    for role, space, stored in (
        ("observation", observation_space, data.observation_space),
        ("action", action_space, data.action_space),
    ):
        if space is not None:
            check_layout_of(space, stored, role, data.name, guessed=f"{role}_space" in data.guesses)
    if action_space is not None and action_space != data.action_space:
        check_actions(data, action_space)
    observation_space_, action_space_ = observation_space or data.observation_space, action_space or data.action_space

    def fitted(space: Space, leaves: Leaves) -> Leaves:
        return {path: fit_leaf(leaf, leaves[path]) for path, leaf in leaf_spaces(space).items()}

    known = {"observation_space": observation_space, "action_space": action_space}
    return replace(
        data,
        observations=fitted(observation_space_, data.observations),
        actions=fitted(action_space_, data.actions),
        observation_space=observation_space_,
        action_space=action_space_,
        guesses={key: guess for key, guess in data.guesses.items() if known.get(key) is None},
        verify=False,
    )


def check_layout_of(space: Space, stored: Space, role: str, name: str, guessed: bool = False) -> None:
    """Raise unless a space is that of the data, up to bounds and float width of Boxes, and to further classes.

    Args:
        guessed: whether the space of the data was guessed.

    Raises:
        DataError: with both spaces.
    """
    left, right = leaf_spaces(space), leaf_spaces(stored)
    if list(left) != list(right) or not all(_same_leaf(leaf, right[path]) for path, leaf in left.items()):
        hint = f"it was guessed: load the source again with {role}_space" if guessed else "use matching data"
        raise DataError(f"{name}: the {role} space of the data is {stored}, expected {space}; {hint}")


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
