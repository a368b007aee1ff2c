"""Metrics of an update of PPO."""

from collections.abc import Sequence

import torch
from stable_baselines3.common.logger import Logger
from torch import Tensor

from rltransformers.algorithms.ppo import PPOLoss, PPOWeights, deviation_over, explained_variance
from rltransformers.data.rollout import Recorded


def log_update(
    logger: Logger, recorded: Recorded, losses: Sequence[PPOLoss], weights: PPOWeights, action_std: Tensor | None
) -> None:
    """Record means over the minibatches of an update, in the names of Stable-Baselines3.

    ``action_std``: deviation of continuous actions; None where there are none.
    """

    def mean(name: str) -> float:
        return float(torch.stack([getattr(loss, name) for loss in losses]).mean())

    logger.record("train/policy_gradient_loss", mean("policy"))
    logger.record("train/value_loss", mean("value"))
    logger.record("train/entropy_loss", -mean("entropy"))
    logger.record("train/approx_kl", mean("approx_kl"))
    logger.record("train/clip_fraction", mean("clip_fraction"))
    logger.record("train/loss", float(losses[-1].total.detach()))
    logger.record("train/advantage_std", float(deviation_over(recorded.advantages, recorded.counts)))
    logger.record("train/explained_variance", explained_variance(recorded.values, recorded.returns, recorded.counts))
    logger.record("train/clip_range", weights.clip_range)
    if weights.clip_range_vf is not None:
        logger.record("train/clip_range_vf", weights.clip_range_vf)
    logger.record("train/ent_coef", weights.ent_coef)
    if losses[0].log_barrier is not None and weights.barrier_coef:
        logger.record("train/log_barrier", mean("log_barrier"))
        logger.record("train/barrier_coef", weights.barrier_coef)
    for name in losses[0].auxiliary:
        logger.record(f"train/{name}_loss", float(torch.stack([loss.auxiliary[name] for loss in losses]).mean()))
    if action_std is not None:
        logger.record("train/std", float(action_std.detach()))
