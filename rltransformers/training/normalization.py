"""The running statistics of Stable-Baselines3's ``VecNormalize`` in a checkpoint file instead of a pickle."""

import os
from typing import Any

import torch
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from rltransformers.training.checkpoint import load_checkpoint, save_checkpoint

_KIND = "VecNormalize"


def save_normalization(path: str | os.PathLike[str], env: VecNormalize) -> None:
    """Write settings and running moments of ``env`` as one checkpoint file."""
    settings = {
        "norm_obs": env.norm_obs,
        "norm_reward": env.norm_reward,
        "clip_obs": env.clip_obs,
        "clip_reward": env.clip_reward,
        "gamma": env.gamma,
        "epsilon": env.epsilon,
        "norm_obs_keys": env.norm_obs_keys,
    }
    moments: dict[str, Any] = {"reward": _pack(env.ret_rms)}
    if env.norm_obs:
        observation: Any = env.obs_rms
        nested = isinstance(observation, dict)
        moments["observation"] = {
            key: _pack(rms) for key, rms in (observation if nested else {"": observation}).items()
        }
    save_checkpoint(path, _KIND, settings, moments)


def load_normalization(path: str | os.PathLike[str], env: VecEnv, training: bool) -> VecNormalize:
    """``env`` wrapped with the settings and moments of the file; ``training`` lets the moments move on.

    Outside training rewards pass unchanged.

    Raises:
        CheckpointError: when the file is missing, corrupt or something else.
    """
    checkpoint = load_checkpoint(path, _KIND)
    normalized = VecNormalize(env, training=training, **checkpoint.settings)
    normalized.ret_rms = _unpack(checkpoint.tensors["reward"])
    if normalized.norm_obs:
        moments: Any = {key: _unpack(packed) for key, packed in checkpoint.tensors["observation"].items()}
        normalized.obs_rms = moments[""] if list(moments) == [""] else moments
    if not training:
        normalized.norm_reward = False
    return normalized


def _pack(rms: RunningMeanStd) -> dict[str, Any]:
    return {"mean": torch.as_tensor(rms.mean), "var": torch.as_tensor(rms.var), "count": float(rms.count)}


def _unpack(packed: dict[str, Any]) -> RunningMeanStd:
    rms = RunningMeanStd(shape=tuple(packed["mean"].shape))
    rms.mean, rms.var, rms.count = packed["mean"].numpy(), packed["var"].numpy(), packed["count"]
    return rms
