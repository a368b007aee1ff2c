"""Running statistics of ``VecNormalize`` and of ``scale_rewards`` on a device, while environments are stepped there.

Numbers and formulas are those of the numpy classes, which hold the statistics before and behind. Axis: N environments.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecNormalize
from torch import Tensor
from torch.utils import _pytree as pytree

from rltransformers.core.values import to_tensor
from rltransformers.envs.tensors.base import Leaves
from rltransformers.training.normalization import (
    CLIP,
    EPSILON,
    LiveMeanStd,
    RewardScale,
    change_statistics,
    of_observations,
)
from rltransformers.training.tensor_checks import CheckedTensors


def _moment(name: str) -> Any:
    """A moment that is copied from the device when it is read, and to it when it is set."""

    def read(self: "TensorMeanStd") -> Any:
        return self._values[name].cpu().numpy()[()]

    def write(self: "TensorMeanStd", value: Any) -> None:
        self._values[name] = torch.as_tensor(value, dtype=torch.float64, device=self._values[name].device)

    return property(read, write)


class TensorMeanStd(LiveMeanStd):
    """Running mean and variance in float64 on a device; whoever reads ``mean``, ``var`` or ``count`` gets copies.

    Args:
        own: the statistics that they begin with.
    """

    mean, var, count = _moment("mean"), _moment("var"), _moment("count")

    def __init__(self, own: RunningMeanStd, device: torch.device) -> None:
        self._own = own
        self._values = {
            name: torch.as_tensor(value, dtype=torch.float64, device=device)
            for name, value in {"mean": own.mean, "var": own.var, "count": own.count}.items()
        }

    def take(self, rows: Tensor) -> None:
        rows, (mean, var, count) = rows.to(torch.float64), self._values.values()
        delta, number = rows.mean(0) - mean, len(rows)
        total = count + number
        spread = var * count + rows.var(0, correction=0) * number + delta.square() * count * number / total
        self._values = {"mean": mean + delta * number / total, "var": spread / total, "count": total}

    def back(self, keep: bool) -> RunningMeanStd:
        """The statistics that they began with, which get the values of now where they are to ``keep``."""
        if keep:
            self._own.mean, self._own.var, self._own.count = self.mean, self.var, self.count
        return self._own

    def scaled(self, values: Tensor, epsilon: float, clip: float, centered: bool) -> Tensor:
        """Values divided by the deviation, with ``centered`` around the mean, clipped, in float32."""
        if centered:
            values = values - self._values["mean"]
        scaled = values / (self._values["var"] + epsilon).sqrt()
        return scaled.clamp(-clip, clip).to(torch.float32)


class TensorStatistics:
    """What ``VecNormalize`` and an agent's own scale do to observations and rewards, in tensors, in one rollout.

    Args:
        normalizer: around the environments; None without.
        scale: the agent's own, of rewards; None without.
        gamma: the discount of that scale.
    """

    def __init__(
        self, normalizer: VecNormalize | None, scale: RewardScale | None, gamma: float, device: torch.device
    ) -> None:
        self._normalizer: Any = normalizer
        self._scale: Any = scale
        self._gamma, self._device = gamma, device

    @contextmanager
    def on_device(self, checks: CheckedTensors, keep: bool = True) -> Iterator[None]:
        """Within the block the statistics are on the device, where a checkpoint reads them as ever.

        Without ``keep``, and where values were wrong, running means and variances then are as before the block.

        Raises:
            DataError: for what ``checks`` saw, in place of any other error of the block.
        """
        self._bring()
        try:
            yield
            checks.refuse()
        except Exception as error:
            checks.refuse(error)  # a network raises something else for a class that it does not know
            raise
        finally:
            kept = keep and not checks.refused
            self._change(lambda rms: rms.back(kept) if isinstance(rms, TensorMeanStd) else rms, _array)
            if self._normalizer is not None:
                for name in ("old_obs", "old_reward"):
                    setattr(self._normalizer, name, _array(getattr(self._normalizer, name, np.array([]))))

    def _bring(self) -> None:
        """Bring to the device what is not there: all of it, or what a callback changed in numpy."""
        self._change(
            lambda rms: rms if isinstance(rms, TensorMeanStd) else TensorMeanStd(rms, self._device),
            lambda array: to_tensor(array, self._device),
        )

    def _change(self, statistics: Callable[[Any], Any], sums: Callable[[Any], Any]) -> None:
        """Change all running statistics, and the sums of rewards that those of returns take in."""
        if self._normalizer is not None:
            change_statistics(self._normalizer, statistics)
            self._normalizer.returns = sums(self._normalizer.returns)
        if self._scale is not None:
            self._scale.moments, self._scale.returns = statistics(self._scale.moments), sums(self._scale.returns)

    def first(self, leaves: Leaves) -> Leaves:
        """Take in and normalize observations of a reset."""
        if self._normalizer is not None:
            self._normalizer.returns = np.zeros(self._normalizer.num_envs)
        return self.observed(leaves, takes=True)

    def observed(self, leaves: Leaves, takes: bool) -> Leaves:
        """Normalize observations; with ``takes`` the statistics follow them where they follow any."""
        normalizer = self._normalizer
        if normalizer is None:
            return leaves
        if takes:
            self._bring()
            normalizer.old_obs = leaves.get("", leaves)
        result, statistics = dict(leaves), cast(dict[str, TensorMeanStd], of_observations(normalizer))
        for path, moments in statistics.items():
            if takes and normalizer.training:
                moments.take(leaves[path])
            result[path] = moments.scaled(leaves[path], normalizer.epsilon, normalizer.clip_obs, centered=True)
        return result

    def earned(self, rewards: Tensor, starts: Tensor, ended: Tensor) -> Tensor:
        """Take in and scale the rewards [N] of a step, the first of an episode at ``starts``, the last at ``ended``."""
        normalizer, scale = self._normalizer, self._scale
        if normalizer is not None:
            returns, normalizer.old_reward = normalizer.ret_rms, rewards
            if normalizer.training:
                normalizer.returns = normalizer.returns * normalizer.gamma + rewards
                returns.take(normalizer.returns)
            if normalizer.norm_reward:
                rewards = returns.scaled(rewards, normalizer.epsilon, normalizer.clip_reward, centered=False)
            normalizer.returns = normalizer.returns * ~ended
        if scale is not None:
            scale.returns = scale.returns * self._gamma * ~starts + rewards
            scale.moments.take(scale.returns)
            rewards = scale.moments.scaled(rewards, EPSILON, CLIP, centered=False)
        return rewards


def _array(value: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.cpu().numpy(), value)
