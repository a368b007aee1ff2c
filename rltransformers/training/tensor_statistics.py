"""Running statistics of ``VecNormalize`` and of ``scale_rewards`` on a device, while environments are stepped there.

Numbers and formulas are those of the numpy classes, which hold the statistics before and behind. Axis: N environments.
"""

from typing import Any

import numpy as np
import torch
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecNormalize
from torch import Tensor
from torch.utils import _pytree as pytree

from rltransformers.core.values import to_tensor
from rltransformers.envs.tensors.base import Leaves
from rltransformers.training.normalization import CLIP, EPSILON, RewardScale, of_observations


class TensorMeanStd(RunningMeanStd):
    """Running mean and variance in float64 on a device; whoever reads ``mean``, ``var`` or ``count`` gets copies."""

    def __init__(self, own: RunningMeanStd, device: torch.device) -> None:
        self._values = {
            name: torch.as_tensor(value, dtype=torch.float64, device=device)
            for name, value in {"mean": own.mean, "var": own.var, "count": own.count}.items()
        }

    @property
    def mean(self) -> np.ndarray:  # type: ignore[override]  # an attribute there
        return self._values["mean"].cpu().numpy()

    @property
    def var(self) -> np.ndarray:  # type: ignore[override]
        return self._values["var"].cpu().numpy()

    @property
    def count(self) -> float:  # type: ignore[override]
        return float(self._values["count"])

    def take(self, rows: Tensor) -> None:
        """Take in rows [N, ...]."""
        rows, (mean, var, count) = rows.to(torch.float64), self._values.values()
        delta, number = rows.mean(0) - mean, len(rows)
        total = count + number
        spread = var * count + rows.var(0, correction=0) * number + delta.square() * count * number / total
        self._values = {"mean": mean + delta * number / total, "var": spread / total, "count": total}

    def scaled(self, values: Tensor, epsilon: float, clip: float, centered: bool) -> Tensor:
        """Values divided by the deviation, with ``centered`` around the mean, clipped, in float32."""
        if centered:
            values = values - self._values["mean"]
        scaled = values / (self._values["var"] + epsilon).sqrt()
        return scaled.clamp(-clip, clip).to(torch.float32)


class TensorStatistics:
    """What ``VecNormalize`` and an agent's own scale do to observations and rewards, in tensors, in one rollout.

    ``begin`` takes the statistics to the device, ``end`` brings them back; a checkpoint in between reads them as ever.

    Args:
        normalizer: around the environments; None without.
        scale: the agent's own, of rewards; None without.
        gamma: the discount of that scale.
    """

    def __init__(
        self, normalizer: VecNormalize | None, scale: RewardScale | None, gamma: float, device: torch.device
    ) -> None:
        self._normalizer, self._scale, self._gamma, self._device = normalizer, scale, gamma, device

    def begin(self) -> None:
        """Take the statistics to the device."""
        normalizer, scale = self._normalizer, self._scale
        self._before: dict[str, Any] = {}
        if normalizer is not None:
            self._before["returns"] = normalizer.ret_rms
            normalizer.ret_rms = self._returns = TensorMeanStd(normalizer.ret_rms, self._device)
            normalizer.returns = to_tensor(normalizer.returns, self._device)  # type: ignore[assignment]
            self._observations = {
                path: TensorMeanStd(rms, self._device) for path, rms in of_observations(normalizer).items()
            }
            if normalizer.norm_obs:
                self._before["observations"] = normalizer.obs_rms
                of_all: Any = self._observations
                normalizer.obs_rms = of_all.get("", of_all)
        if scale is not None:
            self._before["scale"] = scale.moments
            scale.moments = self._moments = TensorMeanStd(scale.moments, self._device)
            scale.returns = to_tensor(scale.returns, self._device)  # type: ignore[assignment]

    def end(self, keep: bool) -> None:
        """Bring them back; without ``keep`` running means and variances are those from before the rollout."""
        normalizer, scale = self._normalizer, self._scale
        if normalizer is not None:
            normalizer.ret_rms = _plain(self._before["returns"], self._returns, keep)
            normalizer.returns = _array(normalizer.returns)
            if normalizer.norm_obs:
                before: Any = self._before["observations"]
                if isinstance(before, dict):
                    for path, rms in before.items():
                        _plain(rms, self._observations[path], keep)
                else:
                    _plain(before, self._observations[""], keep)
                normalizer.obs_rms = before
            for name in ("old_obs", "old_reward"):
                setattr(normalizer, name, _array(getattr(normalizer, name, np.array([]))))
        if scale is not None:
            scale.moments = _plain(self._before["scale"], self._moments, keep)
            scale.returns = _array(scale.returns)

    def first(self, leaves: Leaves) -> Leaves:
        """Take in and normalize observations of a reset."""
        normalizer: Any = self._normalizer
        if normalizer is not None:
            normalizer.returns = torch.zeros_like(normalizer.returns)
        return self.observed(leaves, takes=True)

    def observed(self, leaves: Leaves, takes: bool) -> Leaves:
        """Normalize observations; with ``takes`` the statistics follow them where they follow any."""
        normalizer: Any = self._normalizer
        if normalizer is None:
            return leaves
        if takes:
            normalizer.old_obs = leaves.get("", leaves)
        if not normalizer.norm_obs:
            return leaves
        result = dict(leaves)
        for path, moments in self._observations.items():
            if takes and normalizer.training:
                moments.take(leaves[path])
            result[path] = moments.scaled(leaves[path], normalizer.epsilon, normalizer.clip_obs, centered=True)
        return result

    def earned(self, rewards: Tensor, starts: Tensor, ended: Tensor) -> Tensor:
        """Take in and scale the rewards [N] of a step, the first of an episode at ``starts``, the last at ``ended``."""
        normalizer, scale = self._normalizer, self._scale
        if normalizer is not None:
            of_wrapper: Any = normalizer
            of_wrapper.old_reward = rewards
            if normalizer.training:
                of_wrapper.returns = of_wrapper.returns * normalizer.gamma + rewards
                self._returns.take(of_wrapper.returns)
            if normalizer.norm_reward:
                rewards = self._returns.scaled(rewards, normalizer.epsilon, normalizer.clip_reward, centered=False)
            of_wrapper.returns = of_wrapper.returns * ~ended
        if scale is not None:
            of_scale: Any = scale
            of_scale.returns = of_scale.returns * self._gamma * ~starts + rewards
            self._moments.take(of_scale.returns)
            rewards = self._moments.scaled(rewards, EPSILON, CLIP, centered=False)
        return rewards


def _plain(own: RunningMeanStd, moved: TensorMeanStd, keep: bool) -> RunningMeanStd:
    """The statistics of before, with the values of now where they are to ``keep``."""
    if keep:
        own.mean, own.var, own.count = moved.mean, moved.var, moved.count
    return own


def _array(value: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.cpu().numpy(), value)
