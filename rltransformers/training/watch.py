"""Checks of what environments give an agent while it collects, where nobody has looked before. E environments."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from rltransformers.core.guard import check_observations, check_outcome, guarded, surely_good
from rltransformers.core.spaces import nested_leaves

Place = Callable[[int], str]
"""Number of an environment to what a message says of it: "2 at step 7 of this run"."""


class Watch:
    """Looks at observations and outcomes that no ``FiniteVecEnv`` let through.

    Args:
        env: what the agent steps. A ``VecNormalize`` behind a ``FiniteVecEnv`` makes new numbers, which are looked at.
        normaliser: the ``VecNormalize`` of ``env``, if there is one. What it was given is looked at too, for inside it
            one NaN spreads to all environments.
        leaves: of the observation space, by path.
    """

    def __init__(self, env: VecEnv, normaliser: VecNormalize | None, leaves: Mapping[str, gym.Space[Any]]) -> None:
        self._idle = guarded(env)
        self._raw = None if normaliser is None or guarded(normaliser.venv) else normaliser
        self._count, self._leaves = env.num_envs, leaves

    def observation(self, observation: Any, place: Place) -> dict[str, Any]:
        """The leaves [E, ...] of the newest observations.

        Raises:
            DataError: for one that is not of the space or not finite.
        """
        leaves = nested_leaves(observation)
        if not self._idle:
            seen = {} if self._raw is None else vars(self._raw).get("old_obs", {})  # none before a loaded run's step
            if len(seen):
                check_observations(self._leaves, nested_leaves(seen), place=place)
            check_observations(self._leaves, leaves, place=place)
        return leaves

    def outcome(self, rewards: Any, dones: Any, when: str) -> None:
        """Raise DataError unless rewards and ends of episodes [E] are numbers and flags."""
        if self._idle:
            return
        if self._raw is not None:
            check_outcome(self._count, self._raw.old_reward, {}, when)
        check_outcome(self._count, rewards, {"done": dones}, when)

    def last_observations(
        self, dones: np.ndarray, infos: Sequence[Mapping[str, Any]], place: Place
    ) -> tuple[list[int], dict[str, np.ndarray]]:
        """Environments whose episode a limit cut, and the leaves of their true last observations.

        Raises:
            DataError: for a last observation, cut or not, that is not of the space or not finite.
        """
        last = {
            index: nested_leaves(infos[index]["terminal_observation"])
            for index in np.flatnonzero(dones).tolist()
            if "terminal_observation" in infos[index]
        }
        seen = self._idle or surely_good(self._leaves, list(last.values()))
        for index, one in last.items() if not seen else ():
            alone = {path: [leaf] for path, leaf in one.items()}
            check_observations(self._leaves, alone, "terminal observation", {0: place(index)}.__getitem__)
        cut = [index for index in last if infos[index].get("TimeLimit.truncated", False)]
        paths = last[cut[0]] if cut else ()
        return cut, {path: np.stack([np.asarray(last[index][path]) for index in cut]) for path in paths}
