"""Checks of what environments give an agent while it collects, where nobody has looked before. E environments."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from rltransformers.core.action_masks import ACTION_MASK, LAST_MASK, MASK_METHOD, check_masks, choices_of, fit_masks
from rltransformers.core.errors import DataError
from rltransformers.core.guard import attempt, check_observations, check_outcome, guarded, surely_good
from rltransformers.core.spaces import leaf_spaces, nested_leaves
from rltransformers.policies.observations import tree_space
from rltransformers.training.normalization import kept_statistics

Place = Callable[[int], str]
"""Number of an environment to what a message says of it: "2 at step 7 of this run"."""


class Watch:
    """Looks at observations and outcomes that no ``FiniteVecEnv`` let through.

    Args:
        env: what the agent steps. A ``VecNormalize`` behind a ``FiniteVecEnv`` makes new numbers, which are looked at.
        normaliser: the ``VecNormalize`` of ``env``, if there is one. What it was given is looked at too, for in its
            statistics one NaN spreads to all environments, for good.
        leaves: of the observation space, by path.
        masks: of actions, which join the observations; None where all actions are allowed.
    """

    def __init__(
        self,
        env: VecEnv,
        normaliser: VecNormalize | None,
        leaves: Mapping[str, gym.Space[Any]],
        masks: "Masks | None" = None,
    ) -> None:
        self._idle = guarded(env)
        self._raw = None if normaliser is None or guarded(normaliser.venv) else normaliser
        # Wrappers around the VecNormalize, such as a stack of frames, may change the space.
        self._raw_leaves = {} if self._raw is None else leaf_spaces(tree_space(self._raw.venv.observation_space))
        self._count, self._leaves, self._masks = env.num_envs, leaves, masks

    def step(self, env: VecEnv, actions: Any, when: str) -> Any:
        """A step of all environments; ``when`` it is, for messages.

        Raises:
            DataError: for an exception of an environment (chained), and for what a ``VecNormalize`` must not take in.
        """
        if self._raw is None:
            return attempt(env, when, env.step, actions)
        with self.taking_in(when):
            return attempt(env, when, env.step, actions)

    @contextmanager
    def taking_in(self, when: str) -> Iterator[None]:
        """Within the block environments reset or step; statistics stay as they were where that is refused.

        Raises:
            DataError: for an observation or a reward that is not finite, before the ``VecNormalize`` spreads it to all.
        """
        if self._raw is None:
            yield
            return
        with kept_statistics(self._raw):
            yield
            seen = vars(self._raw).get("old_obs", {})  # none before a loaded run's step, and no rewards before any
            if len(seen):
                check_observations(self._raw_leaves, nested_leaves(seen), place=lambda row: f"{row} {when}")
            if len(self._raw.old_reward):
                check_outcome(self._count, self._raw.old_reward, {}, when)

    def observation(self, observation: Any, place: Place) -> dict[str, Any]:
        """The leaves [E, ...] of the newest observations, with what their masks allow.

        Raises:
            DataError: for one that is not of the space or not finite, and a mask that allows nothing.
        """
        leaves = nested_leaves(observation)
        if not self._idle:
            check_observations(self._leaves, leaves, place=place)
        return leaves if self._masks is None else self._masks.joined(leaves, place)

    def outcome(self, rewards: Any, dones: Any, when: str) -> None:
        """Raise DataError unless rewards and ends of episodes [E] are numbers and flags."""
        if not self._idle:
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
        leaves = {path: np.stack([np.asarray(last[index][path]) for index in cut]) for path in paths}
        if self._masks is not None and cut:
            leaves = self._masks.joined_last(leaves, cut, infos, place)
        return cut, leaves


class Masks:
    """Masks of actions, which join the leaves of the observations that they belong to.

    Args:
        env: what the agent steps.
        beside: whether the masks are what the environments' method ``action_masks()`` says, and no part of the
            observation.
        values_last: whether the values of last observations depend on their masks.
    """

    def __init__(self, env: VecEnv, action_space: gym.Space[Any], beside: bool, values_last: bool) -> None:
        self._env, self._space, self._beside, self._values_last = env, action_space, beside, values_last

    def joined(self, leaves: Mapping[str, Any], place: Place) -> dict[str, Any]:
        """The leaves [E, ...] of the newest observations, with the masks of now [E, M].

        Raises:
            DataError: for what is no mask, or one that allows nothing.
        """
        rows, joined = self._env.num_envs, dict(leaves)
        if self._beside:
            masks = attempt(self._env, f"in {MASK_METHOD}()", self._env.env_method, MASK_METHOD)
            joined[ACTION_MASK] = fit_masks(masks, self._space, rows)
        # What an environment that resets in its next step ignores need not be allowed.
        idle = getattr(self._env.unwrapped, "resets_next", None)
        acting = np.arange(rows) if idle is None else np.flatnonzero(~idle)
        check_masks(np.asarray(joined[ACTION_MASK])[acting], self._space, lambda row: place(int(acting[row])))
        return joined

    def joined_last(
        self, leaves: Mapping[str, Any], cut: Sequence[int], infos: Sequence[Mapping[str, Any]], place: Place
    ) -> dict[str, Any]:
        """The same of last observations, of the environments ``cut``.

        Raises:
            DataError: where values depend on masks, and an environment has reset before anybody asked for its mask.
        """
        joined = dict(leaves)
        if self._beside:
            masks = [infos[index].get(LAST_MASK) for index in cut]
            lost = [index for index, mask in zip(cut, masks, strict=True) if mask is None]
            if lost and self._values_last:
                raise DataError(
                    f"environment {place(lost[0])} was cut by a limit and has reset, and its last mask of actions went "
                    "with it, without which the value of the last observation is not known: put the wrapper "
                    "ActionMasks of rltransformers.envs around the environments"
                )
            all_allowed = np.ones(sum(choices_of(self._space)), np.int8)
            rows_of_masks = [all_allowed if mask is None else mask for mask in masks]
            joined[ACTION_MASK] = fit_masks(np.stack(rows_of_masks), self._space, len(cut))
        if self._values_last:
            check_masks(np.asarray(joined[ACTION_MASK]), self._space, lambda row: place(cut[row]))
        return joined
