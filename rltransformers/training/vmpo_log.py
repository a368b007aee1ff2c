"""Metrics of an update of V-MPO."""

from collections.abc import Sequence

import torch
from stable_baselines3.common.logger import Logger
from torch import Tensor

from rltransformers.algorithms.ppo import deviation_over, explained_variance
from rltransformers.algorithms.vmpo import Multipliers, VMPOBounds, VMPOLoss
from rltransformers.data.rollout import Recorded


def log_update(
    logger: Logger,
    recorded: Recorded,
    losses: Sequence[VMPOLoss],
    multipliers: Multipliers,
    bounds: VMPOBounds,
    action_std: Tensor | None,
) -> None:
    """Record means over the minibatches of an update, and the multipliers after it.

    Divergences stand beside their bounds: ``train/kl_classes`` beside ``train/kl_bound_classes``; ``train/kl`` is the
    sum over their kinds. ``action_std``: deviation of continuous actions; None where there are none.
    """

    def mean(values: Sequence[Tensor]) -> float:
        return float(torch.stack(list(values)).mean())

    logger.record("train/explained_variance", explained_variance(recorded.values, recorded.returns, recorded.counts))
    logger.record("train/advantage_std", float(deviation_over(recorded.advantages, recorded.counts)))
    logger.record("train/temperature", float(multipliers.temperature.detach()))
    for kind, penalty in multipliers.penalties.items():
        logger.record(f"train/alpha_{kind}", float(penalty.detach()))
        logger.record(f"train/kl_bound_{kind}", bounds.eps_alpha[kind])
    if action_std is not None:
        logger.record("train/std", float(action_std.detach()))
    if not losses:  # no step of the rollout counted
        return
    logger.record("train/policy_loss", mean([loss.policy for loss in losses]))
    logger.record("train/temperature_loss", mean([loss.temperature for loss in losses]))
    logger.record("train/value_loss", mean([loss.value for loss in losses]))
    logger.record("train/entropy_loss", -mean([loss.entropy for loss in losses]))
    logger.record("train/weights_kl", mean([loss.weights_divergence for loss in losses]))
    logger.record("train/kl", mean([torch.stack(list(loss.divergences.values())).sum() for loss in losses]))
    for kind in losses[0].divergences:
        logger.record(f"train/kl_{kind}", mean([loss.divergences[kind] for loss in losses]))
    logger.record("train/loss", float(losses[-1].total.detach()))
    for name in losses[0].auxiliary:
        logger.record(f"train/{name}_loss", mean([loss.auxiliary[name] for loss in losses]))
