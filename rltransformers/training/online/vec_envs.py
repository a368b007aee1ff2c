"""Environments of an online agent as a ``VecEnv`` of spaces that it can take."""

import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

import gymnasium as gym
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize

from rltransformers.core.action_masks import ACTION_MASK, MASK_METHOD, check_mask_order, observes_mask
from rltransformers.core.errors import ConfigError
from rltransformers.core.guard import check_copies
from rltransformers.core.pictures import as_picture, picture_of
from rltransformers.core.ranges import shown
from rltransformers.core.spaces import Space, check_supported, is_nested, leaf_spaces
from rltransformers.envs.make import environment_source, make_env
from rltransformers.envs.vector import GymnasiumVecEnv, SerialVecEnv, with_statistics
from rltransformers.envs.wrappers import FlatDict
from rltransformers.policies.action_heads import check_action_space
from rltransformers.policies.memory_policy import MemoryPolicy
from rltransformers.policies.observations import tree_space
from rltransformers.policies.registered import LeafChoice, read_leaves
from rltransformers.training.normalization import check_normalizable, of_observations


def as_vec_env(env: Any, monitor: bool = True) -> VecEnv:
    """``env`` as a ``VecEnv`` with episode statistics; nested observations become flat Dicts.

    Args:
        env: a Gymnasium id, a function that makes an environment, an environment or a vector environment, or a
            ``VecEnv``; an id makes one environment, which draws itself as an array where it can, as in
            Stable-Baselines3. Ids are found as by ``make_vec_env``.
        monitor: give a single environment episode statistics.
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
    check_text_keys(env.observation_space)
    check_action_space(env.action_space)
    check_copies(env)
    check_normalizable(env)
    return cast(VecEnv, env)


def check_text_keys(observation_space: Space) -> None:
    """Raise ConfigError for a flat Dict of observations with keys that are no texts."""
    keys = observation_space.spaces if isinstance(observation_space, spaces.Dict) else ()
    if wrong := [key for key in keys if not isinstance(key, str)]:
        raise ConfigError(
            f"observations of a VecEnv have the key {wrong[0]!r}, and keys must be texts; put the wrapper FlatDict of "
            "rltransformers.envs around every environment"
        )


def _drawing(spec: Any) -> gym.Env[Any, Any]:
    """The environment of a specification, drawing itself as an array where it can."""
    with warnings.catch_warnings(), suppress(ConfigError):  # some take no such keyword
        warnings.simplefilter("ignore")  # of environments that do not draw
        return make_env(spec, env_kwargs={"render_mode": "rgb_array"}, flat=False)
    return make_env(spec, flat=False)  # tells what else is wrong


def with_masks(
    policy_kwargs: Mapping[str, Any], env: VecEnv | None, observation_space: Space, action_space: Space
) -> dict[str, Any]:
    """Let a policy mask actions where the environment has masks, and the settings do not say whether."""
    masks = policy_kwargs.get("action_masks")
    if observes_mask(tree_space(observation_space), action_space, masks) or env is None or masks is False:
        return dict(policy_kwargs)
    if env.has_attr(MASK_METHOD):
        return {**policy_kwargs, "action_masks": True}
    if masks:
        raise ConfigError(
            f"the policy masks actions, and the environment has neither a method {MASK_METHOD}() nor a leaf "
            f"{ACTION_MASK!r} of its observation; wrap it in ActionMasker of sb3-contrib, or make a "
            "new agent with policy_kwargs={'action_masks': False} (policy.action_masks in a config)"
        )
    return dict(policy_kwargs)


def with_pictures(policy_kwargs: Mapping[str, Any], env: VecEnv | None, space: Space) -> dict[str, Any]:
    """Let a policy take pictures as they are that ``VecNormalize`` has normalized, whatever their bounds say."""
    normalizer = None if env is None else unwrap_vec_normalize(env)
    if normalizer is None or policy_kwargs.get("features_extractor_class") is not None:
        return dict(policy_kwargs)
    observation, leaves = policy_kwargs.get("observation") or {}, leaf_spaces(tree_space(space))
    chosen, pictures = read_leaves(observation.get("leaves")), {}
    for path in of_observations(normalizer):
        leaf, choice = leaves.get(path), chosen.get(path)
        if not isinstance(leaf, spaces.Box) or len(leaf.shape) not in (2, 3, 4) or as_picture(leaf).largest == 1:
            continue
        if choice is None and picture_of(leaf, path) is not None:
            choice = LeafChoice("image")
        if choice is not None and choice.name == "image":
            pictures[path] = {"name": "image", "largest": 1.0, **choice.options}
    if not pictures:
        return dict(policy_kwargs)
    return {
        **policy_kwargs,
        "observation": {**observation, "leaves": {**(observation.get("leaves") or {}), **pictures}},
    }


def check_masks_of(env: VecEnv, policy: MemoryPolicy, policy_kwargs: Mapping[str, Any], kind: str) -> None:
    """Raise ConfigError unless ``env`` has masks of actions beside its observation just where the policy reads such."""
    if policy.masks_beside and not env.has_attr(MASK_METHOD):
        raise ConfigError(
            f"the policy masks actions by the method {MASK_METHOD}() of its environment, and this one has none; "
            "wrap it in ActionMasker of sb3-contrib"
        )
    if not policy.masks and policy_kwargs.get("action_masks") is not False and env.has_attr(MASK_METHOD):
        raise ConfigError(
            f"the environment has a method {MASK_METHOD}(), and the policy was made without masks: "
            f"{kind}.load(path, env=env) makes one with them, "
            "load(path, policy_kwargs={..., 'action_masks': False}) one that leaves them alone"
        )


def trained_spaces(trained: tuple[Space, Space], env: VecEnv) -> tuple[Space, Space]:
    """The spaces (observation, action) that an agent was trained with; observations flat where those of ``env`` are.

    Keys keep the order of the training, which the weights have.

    Raises:
        ConfigError: for an environment with other spaces, or with masks of actions whose keys have another order.
    """
    tree = tree_space(env.observation_space)
    for what, mine, theirs in zip(("observation", "action"), trained, (tree, env.action_space), strict=True):
        if mine != theirs:
            raise ConfigError(f"the agent was trained with {what} space {mine}, the environment has {theirs}")
    seen, acted = trained
    if ACTION_MASK in leaf_spaces(tree) or env.has_attr(MASK_METHOD):
        check_mask_order(acted, env.action_space)
    return seen if tree is env.observation_space else spaces.Dict([*leaf_spaces(seen).items()]), acted
