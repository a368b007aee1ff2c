"""Running statistics of ``VecNormalize`` as plain tensors, so that no checkpoint is a pickle, and of an own scale."""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast

import numpy as np
import torch
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import (
    VecCheckNan,
    VecEnv,
    VecEnvWrapper,
    VecMonitor,
    VecNormalize,
    unwrap_vec_normalize,
)
from torch import Tensor

from rltransformers.core.checkpoint import check_same, check_tensor, contents_of, load_checkpoint, save_checkpoint
from rltransformers.core.errors import CheckpointError, ConfigError, DataError
from rltransformers.core.ranges import LARGEST, NonNegativeNumber, UnitInterval, check, check_settings
from rltransformers.core.spaces import Space, leaf_spaces
from rltransformers.core.values import finite, numbers
from rltransformers.core.world import Sharing, current_sharing
from rltransformers.envs.novelty import NoveltyBonus
from rltransformers.policies.shipping import Scaling

_KIND = "VecNormalize"
_SETTINGS: dict[str, Any] = {
    "norm_obs": bool,
    "norm_reward": bool,
    "clip_obs": NonNegativeNumber,
    "clip_reward": NonNegativeNumber,
    "gamma": UnitInterval,
    "epsilon": NonNegativeNumber,
    "norm_obs_keys": list[str] | None,
}


class LiveMeanStd(RunningMeanStd):
    """Running mean and variance that follow a training; a copy or a pickle stays as it is, a ``RunningMeanStd``."""

    def __reduce__(self) -> Any:
        return RunningMeanStd, (), {name: getattr(self, name) for name in ("mean", "var", "count")}


class SharedMeanStd(LiveMeanStd):
    """Running mean and variance of what all processes see, where ``VecNormalize`` has those of its own environments."""

    def __init__(self, own: RunningMeanStd) -> None:
        super().__init__(shape=own.mean.shape)
        self.mean, self.var, self.count = own.mean, own.var, own.count

    def update(self, arr: np.ndarray) -> None:
        """Take in the arrays of all processes as one; sums are taken around the mean so far, for precision."""
        away = np.asarray(arr, np.float64) - self.mean
        sums = np.stack([away.sum(0), np.square(away).sum(0), np.full(self.mean.shape, len(arr), np.float64)])
        first, second, count = current_sharing().sum(torch.from_numpy(sums)).numpy()
        number = float(count.flat[0])
        self.update_from_moments(self.mean + first / number, second / number - np.square(first / number), number)


def share_statistics(sharing: Sharing, normalizer: VecNormalize | None) -> None:
    """Let the statistics of ``normalizer`` be those of the environments of all processes."""
    if not sharing.is_single and normalizer is not None:
        change_statistics(normalizer, shared)


def shared(own: RunningMeanStd) -> RunningMeanStd:
    """The same statistics, which take in what all processes see from now on."""
    return own if isinstance(own, SharedMeanStd) else SharedMeanStd(own)


def pack_normalization(env: VecNormalize) -> dict[str, Any]:
    """Settings and running statistics of ``env``, as tensors and JSON values."""
    return {
        "settings": {name: getattr(env, name) for name in _SETTINGS},
        "observations": {path: pack_moments(rms) for path, rms in of_observations(env).items()},
        "returns": pack_moments(env.ret_rms),
        "running_returns": torch.as_tensor(env.returns),
    }


def with_normalizer(env: VecEnv, packed: Mapping[str, Any] | None) -> VecEnv:
    """``env`` in a ``VecNormalize`` with the packed settings; as it is where it has one, or observes no numbers."""
    if packed is None:
        return env
    settings = _settings(packed["settings"], "normalization.")
    if unwrap_vec_normalize(env) is None:
        with suppress(ValueError, KeyError):  # what it cannot normalize is not what the agent was trained on
            env = VecNormalize(env, **settings)
    return env


def set_statistics(wrapper: VecNormalize, packed: Mapping[str, Any], sharing: Sharing | None = None) -> None:
    """Let ``wrapper`` go on from packed statistics; of running returns it takes those of this process."""
    if wrapper.norm_obs:
        targets = of_observations(wrapper)
        for path, moments in packed["observations"].items():
            set_moments(targets[path], moments, f"normalization.observations.{path}")
    set_moments(wrapper.ret_rms, packed["returns"], "normalization.returns")
    returns = check_tensor(packed["running_returns"], "normalization.running_returns", (None,), torch.float64)
    if sharing is not None and len(returns) == wrapper.num_envs * sharing.size:
        returns = returns[sharing.block(wrapper.num_envs)]
    if len(returns) == wrapper.num_envs:
        wrapper.returns = returns.numpy().copy()


def check_same_observations(env: VecEnv, packed: Mapping[str, Any] | None) -> None:
    """Raise ConfigError where ``env`` normalizes other observations than ``packed``, or behind another wrapper."""
    wrapper = unwrap_vec_normalize(env)
    if wrapper is None or packed is None:
        return
    ours, theirs = _normalized(packed["settings"]), _normalized(vars(wrapper))
    if ours != theirs:
        raise ConfigError(
            f"the agent was trained with VecNormalize({ours}), the environment has VecNormalize({theirs}): it would "
            "see other numbers than it learned from; give the environment with the same settings, or without a wrapper"
        )
    outside, here = packed["between"], wrapper_between(env)
    if outside != here:
        raise ConfigError(
            f"the agent was trained with {outside or 'nothing'} around VecNormalize, here it is {here or 'nothing'}: "
            "it would see other numbers than it learned from; give the environment with its wrappers, VecNormalize "
            "among them, in the same order"
        )


def check_same_rewards(env: VecEnv, packed: Mapping[str, Any] | None) -> None:
    """Raise ConfigError unless ``env`` scales rewards just where the environment of the packed statistics did.

    For policies that read the reward of the last step. ``packed``: None for an agent trained without ``VecNormalize``.
    """
    wrapper, scaled = unwrap_vec_normalize(env), packed is not None and packed["settings"]["norm_reward"]
    if wrapper is not None and wrapper.norm_reward != scaled:
        trained = "without VecNormalize" if packed is None else f"with VecNormalize(norm_reward={scaled})"
        raise ConfigError(
            f"the policy reads rewards and was trained {trained}, the environment has "
            f"VecNormalize(norm_reward={wrapper.norm_reward}): it would see other numbers than it learned from; set "
            f"norm_reward={scaled} on it, or give the environment without VecNormalize"
        )


def _normalized(settings: Mapping[str, Any]) -> str:
    """Which observations a ``VecNormalize`` with these settings normalizes, as its keywords."""
    keys = settings["norm_obs_keys"]
    which = f", norm_obs_keys={sorted(keys)}" if settings["norm_obs"] and keys is not None else ""
    return f"norm_obs={settings['norm_obs']}{which}"


def check_normalizable(env: VecEnv) -> None:
    """Raise ConfigError for two ``VecNormalize``, and for one that makes fractions of integer observations."""
    wrapper = unwrap_vec_normalize(env)
    if wrapper is not None and unwrap_vec_normalize(wrapper.venv) is not None:
        raise ConfigError(
            "the environment stands in two VecNormalize, of whose statistics a checkpoint holds one; leave one out"
        )
    if wrapper is None or not wrapper.norm_obs:
        return
    space: Any = wrapper.observation_space
    leaves = {"": space} if wrapper.norm_obs_keys is None else {key: space[key] for key in wrapper.norm_obs_keys}
    for key, leaf in leaves.items():
        if not np.issubdtype(leaf.dtype, np.floating):
            where = f"leaf {key!r} of the observation" if key else "the observation"
            way_out = "name the other leaves in norm_obs_keys" if key else "pass norm_obs=False"
            raise ConfigError(
                f"VecNormalize makes fractions of {where}, whose space {leaf} has integers alone; {way_out}, or let "
                "the environment observe float32"
            )


def checked_normalization(packed: Mapping[str, Any], space: Space) -> dict[str, Any]:
    """Checked statistics of ``pack_normalization`` for observations of ``space``, where no environment takes them.

    Where a wrapper stood between ``VecNormalize`` and the policy, the statistics are of another space, and not read.
    """
    shapes = {path: leaf.shape or () for path, leaf in leaf_spaces(space).items()}
    named = check(packed["observations"], Mapping[str, Any], "normalization.observations")
    if check(packed["between"], str | None, "normalization.between") is not None:
        named = {}
    moments = [(f"observations.{path}", values, shapes[path]) for path, values in named.items()]
    for name, values, shape in [*moments, ("returns", packed["returns"], ())]:
        set_moments(RunningMeanStd(shape=shape), values, f"normalization.{name}")
    return {**packed, "settings": _settings(packed["settings"], "normalization.")}


def scalings_of(packed: Mapping[str, Any] | None) -> tuple[dict[str, Scaling], Scaling | None]:
    """Scalings of ``VecNormalize`` of observation leaves by path, and of the reward; for a policy in a file.

    Args:
        packed: what ``pack_normalization`` gave, and the wrapper ``between``; None where nothing is normalized.

    Raises:
        ConfigError: when a wrapper stands between ``VecNormalize`` and the policy.
    """
    if packed is None:
        return {}, None
    check_outermost(packed["between"])
    settings = packed["settings"]
    epsilon, clip = settings["epsilon"], settings["clip_obs"]
    leaves = {
        path: Scaling(moments["mean"].numpy(), moments["var"].numpy(), epsilon, clip)
        for path, moments in packed["observations"].items()
    }
    if not settings["norm_reward"]:
        return leaves, None
    # Rewards are scaled and not shifted.
    return leaves, Scaling(np.zeros(()), packed["returns"]["var"].numpy(), epsilon, settings["clip_reward"])


def wrapper_between(env: VecEnv | None, rewards: bool = False) -> str | None:
    """The outermost wrapper between a ``VecNormalize`` of ``env`` and the policy that changes what is seen.

    Args:
        rewards: name one that changes rewards, too.
    """
    while env is not None and not isinstance(env, VecNormalize):
        if not isinstance(env, VecMonitor | VecCheckNan) and (rewards or not isinstance(env, NoveltyBonus)):
            return type(env).__name__
        env = cast(VecEnvWrapper, env).venv
    return None


def check_outermost(wrapper: str | None) -> None:
    """Raise ConfigError where ``wrapper_between`` names a wrapper."""
    if wrapper is not None:
        raise ConfigError(
            f"{wrapper} stands between VecNormalize and the policy, so that what knows the statistics alone would not "
            "see what the policy sees; make VecNormalize the outer wrapper"
        )


def save_normalization(path: str | os.PathLike[str], env: VecNormalize) -> None:
    """Write settings and statistics of ``env`` as one checkpoint file."""
    packed = pack_normalization(env)
    save_checkpoint(path, _KIND, packed.pop("settings"), packed)


def load_normalization(path: str | os.PathLike[str], env: VecEnv, training: bool) -> VecNormalize:
    """``env`` wrapped with the settings and statistics of the file; ``training`` lets the statistics move on.

    Outside training rewards pass unchanged.

    Raises:
        CheckpointError: when the file is missing, corrupt or something else.
    """
    checkpoint = load_checkpoint(path, _KIND)
    with contents_of(path, _KIND):
        settings = _settings(checkpoint.settings)
        normalized = VecNormalize(env, training=training, **settings)
        set_statistics(normalized, checkpoint.tensors)
    if not training:
        normalized.norm_reward = False
    return normalized


def _settings(values: Any, prefix: str = "") -> dict[str, Any]:
    """Keywords of ``VecNormalize``; without bound is what lies beyond float32."""
    given = check(values, Mapping[str, Any], f"{prefix}settings")
    bounded = {name: min(value, LARGEST) if type(value) is float else value for name, value in given.items()}
    return check_settings(_SETTINGS, bounded, prefix)


def of_observations(wrapper: VecNormalize) -> dict[str, RunningMeanStd]:
    """Running statistics of the leaves of the observation that are normalized."""
    found: Any = wrapper.obs_rms if wrapper.norm_obs else {}  # which it has only where it normalizes them
    return found if isinstance(found, dict) else {"": found}


def change_statistics(wrapper: VecNormalize, change: Callable[[Any], RunningMeanStd]) -> None:
    """Replace the running statistics of returns, and of observations where they are normalized."""
    wrapper.ret_rms = change(wrapper.ret_rms)
    if wrapper.norm_obs:
        changed: Any = {path: change(rms) for path, rms in of_observations(wrapper).items()}
        wrapper.obs_rms = changed.get("", changed)


def pack_moments(rms: RunningMeanStd) -> dict[str, Any]:
    """Mean, variance and count, as tensors and a number."""
    return {"mean": torch.as_tensor(rms.mean), "var": torch.as_tensor(rms.var), "count": float(rms.count)}


def set_moments(rms: RunningMeanStd, moments: Mapping[str, Any], name: str) -> None:
    """Let ``rms`` go on from ``pack_moments``, which stands in a checkpoint as ``name``, each moment checked."""
    count = check(moments, Mapping[str, Any], name).get("count")
    check_same(moments, pack_moments(rms) | {"count": count}, name)
    check(count, NonNegativeNumber, f"{name}.count")
    for moment in ("mean", "var"):
        if not bool(torch.isfinite(moments[moment]).all()):
            raise CheckpointError(
                f"{name}.{moment} is not finite: the environment returned what was no number while these statistics "
                "were collected"
            )
    rms.mean, rms.var, rms.count = moments["mean"].numpy().copy(), moments["var"].numpy().copy(), moments["count"]


EPSILON, CLIP = 1e-8, 10.0
"""Added to the variance, and the bound of scaled rewards: the defaults of ``VecNormalize``."""


class RewardScale:
    """Divide rewards by the running deviation of the discounted return, as ``VecNormalize`` does.

    The statistics are of the environments of all processes of ``sharing``, of which this one has ``n_envs``.

    Attributes:
        returns: discounted sums of the rewards of the running episodes [E].
        moments: running mean and variance of ``returns``.
    """

    def __init__(self, n_envs: int, sharing: Sharing) -> None:
        self.returns = np.zeros(n_envs)
        self.moments = RunningMeanStd() if sharing.is_single else shared(RunningMeanStd())

    def update(self, rewards: np.ndarray, episode_starts: np.ndarray, gamma: float) -> np.ndarray:
        """Take in the rewards [E] of a step, which is the first of an episode at ``episode_starts`` [E]; scale them."""
        self.returns = np.where(episode_starts, 0.0, self.returns * gamma) + rewards
        self.moments.update(self.returns)
        return self(rewards)

    def __call__(self, rewards: Any) -> np.ndarray:
        """Rewards divided by the present deviation, clipped, in float32."""
        scaled = rewards / np.sqrt(self.moments.var + EPSILON)
        return np.clip(scaled, -CLIP, CLIP).astype(np.float32)

    def of_last_step(self, rewards: Any) -> Any:
        """Scale what ``predict`` is given as rewards; leave what is no finite number as it is, to be refused there."""
        with suppress(DataError):
            array = numbers(rewards)
            return np.where(finite(array), self(array), array)
        return rewards

    def tensors(self) -> dict[str, Any]:
        """The statistics for a checkpoint, which holds ``returns`` beside them."""
        return pack_moments(self.moments)

    def restore(self, moments: Mapping[str, Any], returns: Any, n_envs: int) -> None:
        """Go on from the statistics of a checkpoint of ``n_envs`` environments; sums of another number are left out."""
        set_moments(self.moments, moments, "reward_scale")
        sums: Tensor = check_tensor(returns, "running_returns", (n_envs,), torch.float64)
        if n_envs == len(self.returns):
            self.returns = sums.numpy().copy()
