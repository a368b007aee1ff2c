"""EnvPool's environments: many copies in C++ threads of this process, as one Gymnasium vector environment. N copies."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rltransformers.core.errors import ConfigError, DataError, did_you_mean, require
from rltransformers.core.spaces import map_leaves

_ROWS = ("env_id", "players")
"""Infos that say which copy a row belongs to."""


def check_pool_id(env_id: str) -> None:
    """Raise ConfigError for an id that EnvPool does not have, MissingExtraError without EnvPool."""
    envpool: Any = require("envpool", "envpool")
    known = envpool.list_all_envs()
    if env_id not in known:
        near = did_you_mean(env_id.rpartition("/")[2], known)
        hint = near if near.startswith("did") else "`envpool.list_all_envs()` names those that it has"
        raise ConfigError(f"EnvPool has no environment {env_id!r}; {hint}")


class EnvPoolVector(VectorEnv[Any, Any, Any]):
    """Copies of an environment of EnvPool that wait for a reset at the end of an episode.

    EnvPool begins the next episode of a copy in the step behind an end, and ignores the action of that step. Here a
    copy that ended is reset by its number before that step, so every step is one of an episode.

    EnvPool takes a seed when it makes a pool, so a reset with a seed makes the pool anew; copy i has ``seed + i``.

    Args:
        env_id: an id of EnvPool, which has names and rules of its own ("Pong-v5" for "ALE/Pong-v5").
        options: keywords of ``envpool.make``, as ``max_episode_steps`` or ``num_threads``.

    Raises MissingExtraError without EnvPool.
    """

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}

    def __init__(self, env_id: str, num_envs: int, options: Mapping[str, Any]) -> None:
        envpool: Any = require("envpool", "envpool")
        self._make = envpool.make
        self._arguments = {"task_id": env_id, "env_type": "gymnasium", "num_envs": num_envs, **options}
        self.num_envs = num_envs
        self.pool = self._make(**self._arguments)
        self.single_observation_space = self.pool.observation_space
        self.single_action_space = self.pool.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """First observations of new episodes; with ``options["reset_mask"]`` [N] of these copies, zeros elsewhere."""
        if seed is not None:
            self.pool.close()
            self.pool = self._make(**self._arguments | {"seed": seed})
        mask = (options or {}).get("reset_mask")
        copies = np.arange(self.num_envs) if mask is None else np.flatnonzero(mask)
        observation, info = self.pool.reset(None if mask is None else copies.astype(np.int32))
        if not np.array_equal(info["env_id"], copies):  # as versions before 1 do with NumPy 2, without a word
            raise DataError(
                f"EnvPool was to reset the copies {copies} and returned rows of {info['env_id']}; "
                "its version does not go with that of NumPy: pip install -U 'rltransformers[envpool]'"
            )
        info = _without_rows(info)
        if mask is None:
            return observation, info
        return self._spread(observation, copies), self._spread(info, copies)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, rewards, terminated, truncated, info = self.pool.step(actions)
        return observation, rewards, terminated, truncated, _without_rows(info)

    def close_extras(self, **none: Any) -> None:
        self.pool.close()

    def _spread(self, values: Any, copies: np.ndarray) -> Any:
        """Rows of some copies as rows of all, the others 0."""

        def spread(rows: Any) -> np.ndarray:
            rows = np.asarray(rows)
            all_rows = np.zeros((self.num_envs, *rows.shape[1:]), rows.dtype)
            all_rows[copies] = rows
            return all_rows

        return map_leaves(spread, values)


def _without_rows(info: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in info.items() if key not in _ROWS}
