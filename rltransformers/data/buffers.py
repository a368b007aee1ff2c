"""Buffers of Stable-Baselines3 as trajectories. Axes: R rows of the ring or rollout, E environments, N = E R steps."""

import sys
from typing import Any

import numpy as np
from gymnasium import spaces

from rltransformers.core.errors import DataError
from rltransformers.core.spaces import Space, map_leaves
from rltransformers.core.values import Array, Bools
from rltransformers.data.d4rl import trajectories_from_d4rl
from rltransformers.data.spaces import Options
from rltransformers.data.trajectories import Trajectories

BUFFERS = "stable_baselines3.common.buffers"


def is_buffer(value: object) -> bool:
    """Whether this is a replay or rollout buffer of Stable-Baselines3, or one of its subclasses."""
    module = sys.modules.get(BUFFERS)  # who has such an object has imported it
    return module is not None and isinstance(value, module.ReplayBuffer | module.RolloutBuffer)


def trajectories_from_buffer(buffer: Any, options: Options, name: str | None = None) -> Trajectories:
    """Trajectories of a buffer of Stable-Baselines3 as its agents fill it, one environment after the other.

    An episode whose beginning the buffer no longer holds (a ring that wrapped, a rollout that began within an episode)
    is dropped, for nobody knows at which step it begins. One that still ran when the buffer was read is kept and marked
    truncated, as is one that a new call of ``learn`` cut short: there the next observation is not the following one.

    Replay buffers: actions of a Box are scaled back from [-1, 1], the last observation of an episode is its
    ``next_observations`` (unknown with ``optimize_memory_usage``). Rollout buffers: actions of a Box are clipped as the
    environment got them, last observations are unknown, and the reward before a time limit holds the value that the
    algorithm added there; behind ``VecNormalize`` their observations and rewards are the normalized ones.

    The option ``time_limit`` is needed where the buffer does not tell whether an episode was terminated or truncated:
    rollout buffers, and replay buffers with ``handle_timeout_termination=False``. Any number beyond the longest episode
    says that none was truncated.
    """
    module = sys.modules[BUFFERS]
    name = options.name or name or type(buffer).__name__
    replay = isinstance(buffer, module.ReplayBuffer)
    if buffer.size() == 0:
        raise DataError(f"{name} is empty; fill it first, for example with model.learn(...)")
    tells_limits = replay and buffer.handle_timeout_termination
    if not tells_limits and options.time_limit is None:
        why = "was made with handle_timeout_termination=False" if replay else "stores only where episodes begin"
        raise DataError(
            f"{name} {why}, so it does not tell whether an episode was terminated (nothing follows) or truncated (by a "
            f"limit); pass time_limit=<the environment's step limit>, or where there is none any number beyond the "
            f"longest episode"
        )
    arrays, begun = _replayed(buffer) if replay else _rolled_out(buffer)
    arrays["actions"] = _as_executed(buffer.action_space, arrays["actions"], scaled=replay)
    ends = arrays["terminals"] | arrays["timeouts"]
    earlier: Array = np.cumsum(ends, axis=1) - ends  # episodes that ended before, in the same environment
    whole = (earlier > 0) | np.reshape(begun, (-1, 1))
    if not whole.any():
        raise DataError(
            f"{name} holds no beginning of an episode: all {ends.size:,} steps lie within episodes that began before; "
            f"use a larger buffer"
        )
    flat = {key: map_leaves(lambda rows: rows[whole], rows) for key, rows in arrays.items()}
    return trajectories_from_d4rl(flat, options.with_spaces(buffer), name, "stable_baselines3")


def _replayed(buffer: Any) -> tuple[dict[str, Any], bool]:
    """Arrays [E, R, ...] of a replay buffer, oldest row first, and whether row 0 begins an episode."""
    order = np.arange(buffer.size())
    if buffer.full:
        order = (order + buffer.pos) % buffer.buffer_size

    def rows(array: Array) -> Array:
        return array.swapaxes(0, 1)[:, order]

    arrays = {"observations": map_leaves(rows, buffer.observations), "actions": rows(buffer.actions)}
    arrays["rewards"] = rows(buffer.rewards)
    done, limit = rows(buffer.dones) != 0, rows(buffer.timeouts) != 0
    arrays["terminals"], arrays["timeouts"] = done & ~limit, done & limit
    if not buffer.optimize_memory_usage:
        arrays["next_observations"] = map_leaves(rows, buffer.next_observations)
        cut = _restarts(arrays["observations"], arrays["next_observations"])
        arrays["timeouts"][:, :-1] |= cut & ~done[:, :-1]
    arrays["timeouts"][:, -1] |= ~done[:, -1]
    return arrays, not buffer.full


def _rolled_out(buffer: Any) -> tuple[dict[str, Any], Bools]:
    """Arrays [E, R, ...] of a rollout buffer, and in which environments row 0 begins an episode."""
    rows_, envs = buffer.buffer_size, buffer.n_envs

    def rows(array: Array, shape: tuple[int, ...]) -> Array:
        """Rows in order; ``get`` leaves arrays with one axis for all steps, environment by environment."""
        if array.shape[:2] == (rows_, envs) and array.ndim == 2 + len(shape):
            return array.swapaxes(0, 1)[:, : buffer.size()]
        return array.reshape(envs, rows_, *shape)

    arrays = {"observations": map_leaves(rows, buffer.observations, buffer.obs_shape)}
    arrays |= {"actions": rows(buffer.actions, (buffer.action_dim,)), "rewards": rows(buffer.rewards, ())}
    first = rows(buffer.episode_starts, ()) != 0
    newest = np.arange(first.shape[1]) == first.shape[1] - 1  # whether these steps ended an episode is not stored
    arrays |= {"terminals": np.roll(first, -1, axis=1) & ~newest, "timeouts": np.broadcast_to(newest, first.shape)}
    return arrays, first[:, 0]


def _restarts(observations: Any, following: Any) -> Bools:
    """Where a next observation is not the observation of the following row [E, R - 1]."""
    differences: list[Bools] = []

    def compare(rows: Array, after: Array) -> None:
        left, right = rows[:, 1:], after[:, :-1]
        different = (left != right) & ((left == left) | (right == right))  # NaN is like NaN
        differences.append(different.reshape(*left.shape[:2], -1).any(axis=-1))

    map_leaves(compare, observations, following)
    return np.logical_or.reduce(differences)


def _as_executed(space: Space, actions: Array, scaled: bool) -> Array:
    """Actions [E, R, A] as the environment got them, in the shape of their space."""
    actions = actions.reshape(*actions.shape[:2], *(space.shape or ()))
    if not isinstance(space, spaces.Box):
        return actions
    if not scaled:
        return np.clip(actions, space.low, space.high)
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    with np.errstate(invalid="ignore"):
        executed = low + 0.5 * (actions.astype(np.float64) + 1.0) * (high - low)
    return np.where(np.isfinite(low) & np.isfinite(high), executed, actions)
