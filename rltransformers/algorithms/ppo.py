"""The loss of Proximal Policy Optimization (arXiv 1707.06347) on recorded segments. Axes: B environments, T steps."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rltransformers.algorithms.loss import Loss
from rltransformers.data.rollout import Recorded
from rltransformers.functional.modules import masked_mean

LEAST_SHARE = 0.01
"""Of the learning rate, how little is left after any number of updates that ended early."""


@dataclass(frozen=True)
class PPOLoss(Loss):
    """What the loss is made of; ``log_barrier`` is None unless the actions are countable."""

    policy: Tensor
    value: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor
    ratio_error: Tensor
    log_barrier: Tensor | None = None


@dataclass(frozen=True)
class PPOWeights:
    """Bounds and weights of the parts of the loss."""

    clip_range: float  # bound of the probability ratio
    clip_range_vf: float | None  # bound of the change of the value; None for none
    ent_coef: float  # weight of the entropy bonus
    vf_coef: float  # weight of the value error
    barrier_coef: float = 0.0  # weight of the log barrier


class Estimates(Protocol):
    """Evaluation of the steps by the policy of now.

    ``log_barrier``, minus the divergence from the uniform policy, is None unless the actions are countable.
    """

    @property
    def log_probs(self) -> Float[Tensor, "B T"]: ...
    @property
    def values(self) -> Float[Tensor, "B T"]: ...
    @property
    def entropy(self) -> Float[Tensor, "B T"]: ...
    @property
    def log_barrier(self) -> Float[Tensor, "B T"] | None: ...


def ppo_loss(now: Estimates, batch: Recorded, weights: PPOWeights) -> PPOLoss:
    """Clipped surrogate (eq. 7) minus entropy and log barrier plus value error (eq. 9), means over steps that count."""
    counts = batch.counts
    log_ratio = now.log_probs - batch.log_probs
    policy = masked_mean(-clipped_surrogate(log_ratio, batch.advantages, weights.clip_range), counts)
    value = masked_mean(value_error(now.values, batch.values, batch.returns, weights.clip_range_vf), counts)
    bonus = masked_mean(now.entropy, counts)
    total = policy + weights.vf_coef * value - weights.ent_coef * bonus
    barrier = None if now.log_barrier is None else masked_mean(now.log_barrier, counts)
    if barrier is not None and weights.barrier_coef:
        total = total - weights.barrier_coef * barrier
    with torch.no_grad():
        change = log_ratio.exp() - 1.0
        approx_kl = masked_mean(change - log_ratio, counts)
        clip_fraction = masked_mean((change.abs() > weights.clip_range).to(change.dtype), counts)
        ratio_error = torch.where(counts, change.abs(), torch.zeros_like(change)).max()
    return PPOLoss(
        total=total,
        policy=policy.detach(),
        value=value.detach(),
        entropy=bonus.detach(),
        approx_kl=approx_kl,
        clip_fraction=clip_fraction,
        ratio_error=ratio_error,
        log_barrier=None if barrier is None else barrier.detach(),
    )


def clipped_surrogate(
    log_ratio: Float[Tensor, "B T"], advantages: Float[Tensor, "B T"], clip_range: float
) -> Float[Tensor, "B T"]:
    """min(r A, clip(r, 1 - clip_range, 1 + clip_range) A), the objective that is maximized (eq. 7)."""
    ratio = log_ratio.exp()
    return torch.minimum(advantages * ratio, advantages * ratio.clamp(1.0 - clip_range, 1.0 + clip_range))


def value_error(
    values: Float[Tensor, "B T"],
    old_values: Float[Tensor, "B T"],
    returns: Float[Tensor, "B T"],
    clip_range_vf: float | None,
) -> Float[Tensor, "B T"]:
    """Squared error; with ``clip_range_vf`` the new value may move only that far from the old one, as in SB3's PPO."""
    if clip_range_vf is not None:
        values = old_values + (values - old_values).clamp(-clip_range_vf, clip_range_vf)
    return (returns - values).square()


def standard_scores(
    advantages: Float[Tensor, "B T"], counts: Bool[Tensor, "B T"], least_std: float = 0.0
) -> Float[Tensor, "B T"]:
    """Advantages with mean 0 and standard deviation 1 over the steps that count; the others become 0.

    The deviation divides by the number n of steps, that of Stable-Baselines3 by n - 1. It counts as ``least_std`` at
    least: where everything was foreseen, the error of the critic divided by itself would be noise of unit size (Hafner
    et al. 2023, arXiv 2301.04104, bound the scale of returns for the same reason).
    """
    mean = masked_mean(advantages, counts)
    centered = torch.where(counts, advantages - mean, torch.zeros_like(advantages))
    scores = centered / (deviation_over(advantages, counts) + 1e-8).clamp(min=least_std)
    # Of equal numbers the mean is another one by rounding, and so would be all the scores.
    alike = (advantages == advantages.masked_fill(~counts, -math.inf).amax()) | ~counts
    return scores.masked_fill(alike.all(), 0.0)


def deviation_over(x: Float[Tensor, "B T"], counts: Bool[Tensor, "B T"]) -> Tensor:
    """The standard deviation of ``x`` over the steps that count; 0 when none does."""
    return masked_mean((x - masked_mean(x, counts)).square(), counts).sqrt()


def explained_variance(predictions: Tensor, targets: Tensor, counts: Tensor) -> float:
    """1 - Var(targets - predictions) / Var(targets) over the steps that count; NaN when the targets do not vary."""
    targets, predictions = targets[counts], predictions[counts]
    spread = float(targets.var(unbiased=False)) if len(targets) else 0.0
    return float("nan") if spread == 0.0 else 1.0 - float((targets - predictions).var(unbiased=False)) / spread


def next_rate_share(share: float, part: float) -> float:
    """Which share of its learning rate, in (0, 1], an agent takes in the next update.

    ``part`` in [0, 1] says how much of its minibatches the last update took. Where ``target_kl`` ended it in the first
    fifth, steps were too large for the policy as it is now: the share is divided by 1.5. After half of the epochs it
    is multiplied by 1.2. Schulman et al. 2017, section 4, change the weight of a penalty in this way.
    """
    if part < 0.2:
        return max(share / 1.5, LEAST_SHARE)
    return min(share * 1.2, 1.0) if part >= 0.5 else share
