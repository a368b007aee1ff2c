"""Environments of an online agent as a ``VecEnv`` of spaces that it can take."""

import warnings
from typing import Any, cast

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv

from rltransformers.core.errors import ConfigError
from rltransformers.core.guard import check_copies
from rltransformers.core.ranges import shown
from rltransformers.core.spaces import check_supported, is_nested
from rltransformers.envs.make import environment_source, make_env
from rltransformers.envs.vector import GymnasiumVecEnv, SerialVecEnv, with_statistics
from rltransformers.envs.wrappers import FlatDict
from rltransformers.policies.memory_policy import check_action_space
from rltransformers.policies.observations import tree_space
from rltransformers.training.normalization import check_normalizable

Space = gym.Space[Any]


def as_vec_env(env: Any, monitor: bool = True) -> VecEnv:
    """``env`` as a ``VecEnv`` with episode statistics; nested observations become flat Dicts.

    Args:
        env: a Gymnasium id, a function that makes an environment, an environment or a vector environment, or a
            ``VecEnv``; an id makes one environment, which draws itself as an array where it can, as in
            Stable-Baselines3. Ids are found as by ``make_vec_env``.
        monitor: give a single environment episode statistics.

    Raises:
        ConfigError: for anything else, an unknown id, spaces that no encoder or head takes, and a ``VecNormalize`` over
            integers.
        MissingExtraError: when the package behind an id is not installed.
    """
    if isinstance(env, str | EnvSpec):
        env = _drawing(environment_source(env))
    elif callable(env) and not isinstance(env, gym.Env):
        env = make_env(env, flat=False)
    if isinstance(env, VectorEnv):
        env = with_statistics(GymnasiumVecEnv(env))
    elif not isinstance(env, VecEnv):
        if not isinstance(env, gym.Env):
            raise ConfigError(
                "env must be an environment id, a function that makes an environment, an environment or vector "
                f"environment of Gymnasium, or a VecEnv of Stable-Baselines3; got {shown(env)}"
            )
        check_supported(env.observation_space, "observation")
        if is_nested(env.observation_space):
            env = FlatDict(env)
        if monitor and not is_wrapped(env, Monitor):
            env = Monitor(env)
        single = env
        env = SerialVecEnv([lambda: single])
    check_supported(tree_space(env.observation_space), "observation")
    check_action_space(env.action_space)
    check_copies(env)
    check_normalizable(env)
    return cast(VecEnv, env)


def _drawing(spec: Any) -> gym.Env[Any, Any]:
    """The environment of a specification, drawing itself as an array where it can."""
    with warnings.catch_warnings():  # of environments that do not draw
        warnings.simplefilter("ignore")
        try:
            return make_env(spec, env_kwargs={"render_mode": "rgb_array"}, flat=False)
        except ConfigError:  # some take no such keyword; what else is wrong is told by the second try
            pass
    return make_env(spec, flat=False)


def check_trained_spaces(trained: tuple[Space, Space], env: VecEnv) -> None:
    """Raise ConfigError unless ``env`` has the spaces (observation, action) that an agent was trained with."""
    found = (tree_space(env.observation_space), env.action_space)
    for what, mine, theirs in zip(("observation", "action"), trained, found, strict=True):
        if mine != theirs:
            raise ConfigError(f"the agent was trained with {what} space {mine}, the environment has {theirs}")
