"""Masks of actions: which of them an environment allows in a step. E environments, M entries of a mask.

A mask comes as the leaf ``action_mask`` of a Dict observation (PettingZoo, Gymnasium), or from a method
``action_masks()`` of the environment (MaskablePPO of sb3-contrib); either way it is stored as a leaf.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from rltransformers.core.errors import ConfigError, DataError
from rltransformers.core.spaces import Space, leaf_spaces
from rltransformers.core.values import Place, flags, numbers

ACTION_MASK, MASK_METHOD = "action_mask", "action_masks"
"""Path of the leaf of an observation, and the method of an environment, that hold a mask."""
LAST_MASK = "last_action_mask"  # key of the info of a step whose episode a limit cut: the mask of its last observation
WAY_OUT = (
    f"give the masks with the call, predict(..., {MASK_METHOD}=get_action_masks(env)) or actor(observation, reward, "
    f"{MASK_METHOD}), as sb3_contrib.common.maskable.evaluation.evaluate_policy does, or train in environments with "
    "the wrapper ActionMasks of rltransformers.envs, which makes the mask a part of the observation"
)


def choices_of(action_space: Space) -> list[int]:
    """How many values every countable component of an action has, in the order of the space; a Box has none.

    Discrete(n): n. MultiDiscrete: its ``nvec``. MultiBinary: 2 for every bit, "0 is allowed" before "1 is allowed".
    """
    sizes: list[int] = []
    for leaf in leaf_spaces(action_space).values():
        if isinstance(leaf, spaces.Discrete):
            sizes.append(int(leaf.n))
        elif isinstance(leaf, spaces.MultiDiscrete):
            sizes += leaf.nvec.reshape(-1).tolist()
        elif isinstance(leaf, spaces.MultiBinary):
            sizes += [2] * int(np.prod(leaf.shape))
    return sizes


def mask_space(action_space: Space) -> spaces.MultiBinary:
    """Space of a mask, one entry per value of every component; ConfigError where nothing of the action is countable."""
    size = sum(choices_of(action_space))
    if not size:
        raise ConfigError(
            f"masks are for actions that can be counted, and the action space is {action_space}; leave them out, of an "
            "agent with policy_kwargs={'action_masks': False} (policy.action_masks in a config)"
        )
    return spaces.MultiBinary(size)


def check_mask_order(ours: Space, theirs: Space) -> None:
    """Raise ConfigError where the keys of actions ``theirs`` have another order than ``ours``, which masks follow."""
    mine, other = list(leaf_spaces(ours)), list(leaf_spaces(theirs))
    if mine != other:
        raise ConfigError(
            f"masks of actions hold the choices of one key after another, here in the order {other} and in training in "
            f"the order {mine}; give the keys of the action space, and the masks, in that order"
        )


def is_mask(leaf: Space | None, action_space: Space) -> bool:
    """Whether a leaf of an observation can hold masks of these actions: an entry 0 or 1 for every choice."""
    counts = isinstance(leaf, spaces.MultiBinary) or (
        isinstance(leaf, spaces.Box) and leaf.dtype is not None and leaf.dtype.kind in "biu"
    )
    size = sum(choices_of(action_space))
    return bool(size) and counts and leaf is not None and leaf.shape == (size,)


def observes_mask(observation_space: Space, action_space: Space, wanted: bool | None) -> bool:
    """Whether the observation holds masks to be kept to: a leaf ``action_mask``, unless ``wanted`` is False."""
    leaf = leaf_spaces(observation_space).get(ACTION_MASK)
    if leaf is None or wanted is False:
        return False
    if not is_mask(leaf, action_space):
        size = sum(choices_of(action_space))
        normalized = isinstance(leaf, spaces.Box) and leaf.shape == (size,)
        hint = "; where VecNormalize made numbers of it, leave it out of norm_obs_keys" if normalized else ""
        raise ConfigError(
            f"the observation has a leaf {ACTION_MASK!r} that is {leaf}, and a mask of actions of {action_space} is "
            f"MultiBinary({size}) or a Box of so many integers{hint}; rename the leaf, or set "
            "policy_kwargs={'action_masks': False} to read it as any other"
        )
    return True


def fit_masks(masks: Any, action_space: Space, rows: int) -> np.ndarray:
    """Masks of ``rows`` environments as int8 [E, M], from booleans or numbers 0 and 1; DataError for others."""
    size = sum(choices_of(action_space))
    try:
        array = numbers(masks)
        if array.size != rows * size or not (rows == 1 or array.shape[0] == rows):
            raise DataError(f"has shape {array.shape}, {rows} environments with {size} choices each need {rows, size}")
        return flags(array).reshape(rows, size).astype(np.int8)
    except DataError as error:
        raise DataError(f"{MASK_METHOD} {error}") from error


def add_masks(leaves: dict[str, np.ndarray], masks: Any, action_space: Space, takes: bool, needs: bool) -> None:
    """Put the masks of a step into its leaves [E, ...], where a policy needs them or the call has some.

    Those of the call come before those that the observation has. Raises ConfigError for masks that the policy does not
    take, and where there are none that it needs.
    """
    if masks is None and not needs:
        return
    if not takes:
        raise ConfigError(
            f"action_masks are given to a policy that learned without: there was no method {MASK_METHOD}() and no leaf "
            f"{ACTION_MASK!r}, or policy_kwargs={{'action_masks': False}}; leave action_masks out"
        )
    if masks is None and ACTION_MASK not in leaves:
        raise ConfigError(f"this policy learned with masks of actions and acts only with them: {WAY_OUT}")
    if masks is not None:
        leaves[ACTION_MASK] = fit_masks(masks, action_space, len(next(iter(leaves.values()))))
    check_masks(leaves[ACTION_MASK], action_space)


STUCK = "an environment in which nothing can be done has to end the episode, or allow an action that does nothing"
STUCK_AT_LIMIT = (
    "a limit cut its episode, which is then valued by what could be done next; where that is nothing, the environment "
    "has to return terminated=True, or allow an action that does nothing"
)


def check_masks(
    masks: np.ndarray, action_space: Space, place: Place = str, what: str = "environment", way_out: str = STUCK
) -> None:
    """Raise DataError with ``way_out`` unless every mask of [E, M] allows something in every component.

    ``what``: what a row is.
    """
    begin = 0
    for component, size in enumerate(sizes := choices_of(action_space)):
        allowed = masks[:, begin : begin + size].any(1)
        if not allowed.all():
            of = f" in component {component} of {len(sizes)}" if len(sizes) > 1 else ""
            raise DataError(
                f"the action mask of {what} {place(int(np.argmin(allowed)))} allows no action{of}; {way_out}"
            )
        begin += size


def first_allowed(masks: np.ndarray, action_space: Space, order: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Actions by path [E, ...] that masks [E, M] allow, of every component the first one; a Box has no masks.

    Args:
        order: numbers above 0 [E, M]; the largest one comes first, the order of the space where it is None.
    """
    rank = (masks != 0) * (1.0 if order is None else order)
    actions, begin = {}, 0
    for path, leaf in leaf_spaces(action_space).items():
        if isinstance(leaf, spaces.Box):
            continue
        first = []
        for size in choices_of(leaf):
            first.append(rank[:, begin : begin + size].argmax(1))
            begin += size
        values = np.stack(first, 1).reshape(len(masks), *(leaf.shape or ()))
        actions[path] = (values + getattr(leaf, "start", 0)).astype(leaf.dtype)
    return actions


def check_recorded(actions: Mapping[str, Any], masks: Any, action_space: Space, place: Place = str) -> None:
    """Raise DataError unless the masks [N, M] allow the recorded actions by path [N, ...]."""
    check_masks(np.asarray(masks), action_space, place, "the data's step")
    begin = 0
    for path, leaf in leaf_spaces(action_space).items():
        if isinstance(leaf, spaces.Box):
            continue
        sizes = np.asarray(choices_of(leaf))
        first = 0 if isinstance(leaf, spaces.MultiBinary) else np.reshape(leaf.start, -1)  # type: ignore[attr-defined]  # Discrete and MultiDiscrete have one
        taken = np.reshape(np.asarray(actions[path]), (len(masks), len(sizes))).astype(np.int64) - first
        entries = begin + np.cumsum([0, *sizes[:-1]]) + taken
        good = np.take_along_axis(np.asarray(masks), entries, 1).all(1)
        if not good.all():
            raise DataError(
                f"the data's step {place(int(np.argmin(good)))} has an action that its {ACTION_MASK!r} does not allow; "
                "repair the data, or set policy_kwargs={'action_masks': False}"
            )
        begin += int(sizes.sum())
