"""Critics beside a Decision Transformer: targets inside a window, and what the policy gains from them.

Q-learning regularized Decision Transformer (QT, Hu et al. 2024, arXiv 2405.17098), Q-aided conditional supervised
learning (QCS, Kim et al. 2024, arXiv 2402.02017), and a term that keeps policies obedient to the return they are asked
for (Q-align, Yang & Zhang 2026, arXiv 2605.29028). B windows, K steps of a window.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rltransformers.algorithms.decision import Mean
from rltransformers.functional.modules import masked_mean

MIN_VALUE = 1e-6  # by which values are divided at least


def window_targets(
    rewards: Float[Tensor, "B K"],
    terminated: Bool[Tensor, "B K"],
    valid: Bool[Tensor, "B K"],
    bootstrap: Float[Tensor, " B"],
    discount: float,
) -> tuple[Float[Tensor, "B K"], Bool[Tensor, "B K"]]:
    """Targets of critics at every step of a window, and the steps at which they learn.

    With T - 1 the last valid step, y_t = sum_{j=t}^{T-2} discount^(j-t) r_j + discount^(T-1-t) y_{T-1}, where y_{T-1}
    is the reward of a step that terminates its episode, and of any other ``bootstrap``, the value of the policy there.
    A step that is its own target (T - 1 without termination) does not count. (The targets of QT leave the reward of a
    terminal step out: tasks that pay at their end alone would have none.)
    """
    steps = rewards.shape[1]
    target, seen = bootstrap, torch.zeros_like(valid[:, 0])
    targets, counts = torch.zeros_like(rewards), torch.zeros_like(valid)
    for t in range(steps - 1, -1, -1):
        last = valid[:, t] & ~seen
        at_end = torch.where(terminated[:, t], rewards[:, t], bootstrap)
        here = torch.where(last, at_end, rewards[:, t] + discount * target)
        target = torch.where(valid[:, t], here, target)
        targets[:, t] = torch.where(valid[:, t], here, 0.0)
        counts[:, t] = valid[:, t] & (seen | terminated[:, t])
        seen = seen | valid[:, t]
    return targets, counts


def critic_loss(
    values: Float[Tensor, "2 B K"], targets: Float[Tensor, "B K"], counts: Bool[Tensor, "B K"], mean: Mean = masked_mean
) -> Float[Tensor, ""]:
    """Mean squared error of both critics over the steps that count, summed over the two."""
    return mean((values[0] - targets).square(), counts) + mean((values[1] - targets).square(), counts)


def stitching_weight(returns: Float[Tensor, " B"], best: float, spread: float, weight: float) -> Float[Tensor, " B"]:
    """``weight`` (R* - R)+ in units of ``spread``: poor trajectories are improved upon, good ones are copied.

    QCS, section 4. There R is in units of the task; in units of the best minus the worst return of a dataset one
    weight serves every reward.
    """
    return weight * (best - returns).clamp(min=0.0) / spread


def value_scale(
    values: Float[Tensor, "B K"], valid: Bool[Tensor, "B K"], mean: Mean = masked_mean
) -> Float[Tensor, ""]:
    """Mean of |Q|, a constant: what values are divided by so that a weight means the same in every reward."""
    return mean(values.detach().abs(), valid).clamp(min=MIN_VALUE)


def policy_gain(
    values: Float[Tensor, "B K"], weight: Float[Tensor, " B"], valid: Bool[Tensor, "B K"], mean: Mean = masked_mean
) -> Float[Tensor, ""]:
    """Mean over valid steps of w Q(s, a_hat) / mean |Q|; what a policy loses is minus this."""
    return mean(weight[:, None] * values, valid) / value_scale(values, valid, mean)


def alignment_loss(
    shifted: Float[Tensor, "B K"],
    values: Float[Tensor, "B K"],
    shift: Float[Tensor, " B"],
    valid: Bool[Tensor, "B K"],
    mean: Mean = masked_mean,
) -> Float[Tensor, ""]:
    """How far actions asked for ``shift`` more return are worth less, or asked for less are worth more.

    Mean over valid steps of 1[sign(shift) (Q(s, a_shift) - Q(s, a_hat)) < 0] |Q(s, a_shift) - Q(s, a_hat)| / mean |Q|;
    no gradient flows into Q(s, a_hat), the ``values`` under recorded returns-to-go; ``shifted`` ones are under others.
    """
    gap = shifted - values.detach()
    disobeys = shift.sign()[:, None] * gap < 0
    return mean(torch.where(disobeys, gap.abs(), 0.0), valid) / value_scale(values, valid, mean)
