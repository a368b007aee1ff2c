"""The loop that plays, for evaluations and recordings, step by step. N is the number of environments."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from stable_baselines3.common.vec_env import VecEnv

from rltransformers.core.guard import reset_rows, waiting_rows

Bools = npt.NDArray[np.bool_]
Act = Callable[[Any, Bools, npt.NDArray[Any]], Any]
"""Observation, first observations of episodes [N] and rewards of the last step [N] to the actions of a step."""


class Step(NamedTuple):
    """A step of all environments.

    Attributes:
        observation: to act on next; the first one of the next episode where one has ended.
        rewards: [N].
        ended: whether an episode ended in it [N].
        infos: one per environment; with ``terminal_observation`` and ``TimeLimit.truncated`` where an episode ended.
        resets: whether an environment was only reset [N], which is no transition.
    """

    observation: Any
    rewards: npt.NDArray[Any]
    ended: Bools
    infos: list[dict[str, Any]]
    resets: Bools


def steps(env: VecEnv, act: Act) -> Iterator[Step]:
    """Reset ``env`` and step it by ``act`` for as long as steps are asked for."""
    observation = env.reset()
    first, rewards = np.ones(env.num_envs, bool), np.zeros(env.num_envs)
    while True:
        observation, rewards, dones, infos = env.step(act(observation, first, rewards))
        ended, resets = np.asarray(dones, bool), reset_rows(env)
        yield Step(observation, rewards, ended, infos, resets)
        first = (ended & ~waiting_rows(env)) | resets
