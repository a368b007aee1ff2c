"""Scale of rewards of an online agent. Axis letter: E environments."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.running_mean_std import RunningMeanStd
from torch import Tensor

from rltransformers.core.checkpoint import check_tensor
from rltransformers.core.errors import DataError
from rltransformers.core.values import finite, numbers
from rltransformers.core.world import Sharing
from rltransformers.training.normalization import pack_moments, set_moments, shared

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
