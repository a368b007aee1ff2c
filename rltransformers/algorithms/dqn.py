"""Q-learning on recorded segments: n-step double Q-learning with a Huber loss. Axes: B segments, T steps, A actions.

Row t of a segment is what was seen at step t, the action taken there and the reward for it, so that the value of what
came of it stands in row t + 1. A row that *stops* is the last observation of an episode that a limit cut: no action was
taken there, and its value is what such an episode was still worth.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rltransformers.algorithms.loss import Loss
from rltransformers.algorithms.returns import n_step_returns
from rltransformers.functional.modules import masked_mean

EPSILON = 1e-3  # of ``rescale``: the share of the identity, which keeps the inverse Lipschitz
LARGEST_SHARE = 0.9
"""Of the largest error of a segment in its priority; the rest is the mean (R2D2, section 2.3)."""


@dataclass(frozen=True)
class DQNLoss(Loss):
    """What the loss is made of, and the ``priorities`` [B] of the segments."""

    td_loss: Tensor
    td_error: Tensor
    q_value: Tensor
    target: Tensor
    priorities: Tensor


@dataclass(frozen=True)
class SegmentSteps:
    """Record of the steps of segments of T = L + n rows, of which the first L are learned."""

    actions: Int[Tensor, "B T"]  # counted from 0
    rewards: Float[Tensor, "B T"]  # for the action of a row
    terminal: Bool[Tensor, "B T"]  # actions that ended their episode
    counts: Bool[Tensor, "B T"]  # rows with an action; the others stop
    weights: Float[Tensor, " B"]  # of the losses of whole segments


def dqn_loss(q: Float[Tensor, "B T A"], targets: Float[Tensor, "B L"], steps: SegmentSteps) -> DQNLoss:
    """Huber loss of the values of the first L actions, mean over those that count."""
    counts = steps.counts[:, : targets.shape[1]]
    errors = td_errors(q, targets, steps)
    loss = masked_mean(huber(errors) * steps.weights[:, None], counts)
    found = errors.detach()
    return DQNLoss(
        total=loss,
        td_loss=loss.detach(),
        td_error=masked_mean(found.abs(), counts),
        q_value=masked_mean(targets - found, counts),
        target=masked_mean(targets, counts),
        priorities=segment_priorities(found, counts),
    )


def td_errors(q: Float[Tensor, "B T A"], targets: Float[Tensor, "B L"], steps: SegmentSteps) -> Float[Tensor, "B L"]:
    """Targets minus the values of the actions that were taken, in the first L rows."""
    length = targets.shape[1]
    return targets - q[:, :length].gather(-1, steps.actions[:, :length, None]).squeeze(-1)


def step_losses(q: Float[Tensor, "B T A"], targets: Float[Tensor, "B L"], steps: SegmentSteps) -> Float[Tensor, "B L"]:
    """Huber loss of the value of every action that was taken, in the first L rows."""
    return huber(td_errors(q, targets, steps))


def q_targets(
    q: Float[Tensor, "B T A"],
    target_q: Float[Tensor, "B T A"],
    steps: SegmentSteps,
    discount: float,
    n_step: int,
    rescaled: bool = False,
) -> Float[Tensor, "B L"]:
    """Targets of the values of the taken actions: h(n-step return of h^-1(values)), L = T - n.

    Kapturowski et al. 2019 (R2D2, section 2.3); without ``rescaled`` h is the identity.
    """
    values = double_q_values(q, target_q)
    values = unrescale(values) if rescaled else values
    discounts = discount * (~steps.terminal).to(values.dtype)
    targets = n_step_returns(steps.rewards, discounts, values, ~steps.counts, n_step)
    return rescale(targets) if rescaled else targets


def double_q_values(q: Float[Tensor, "*n A"], target_q: Float[Tensor, "*n A"]) -> Float[Tensor, "*n"]:
    """Values by the target network of the actions that the learning network prefers (arXiv 1509.06461, eq. 4)."""
    return target_q.gather(-1, q.argmax(-1, keepdim=True)).squeeze(-1)


def rescale(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + 1e-3 x (Pohlen et al. 2018, arXiv 1805.11593, section 3.2).

    Written without differences of nearly equal numbers, as its inverse: sqrt(a + 1) - 1 = a / (sqrt(a + 1) + 1).
    """
    return x / ((x.abs() + 1.0).sqrt() + 1.0) + EPSILON * x


def unrescale(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """The inverse of ``rescale`` (there, proposition A.2: r^2 - 1, and r is 1 at 0)."""
    size = x.abs()
    bent = (1.0 + 4.0 * EPSILON * (size + 1.0 + EPSILON)).sqrt()
    excess = 2.0 * size / (bent + 1.0 + 2.0 * EPSILON)  # r - 1
    return x.sign() * excess * (excess + 2.0)


def huber(errors: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """e^2 / 2 for |e| <= 1, and |e| - 1/2 beyond: the gradient is the error clipped to [-1, 1]."""
    size = errors.abs()
    return torch.where(size <= 1.0, 0.5 * errors.square(), size - 0.5)


def segment_priorities(errors: Float[Tensor, "B L"], counts: Bool[Tensor, "B L"]) -> Float[Tensor, " B"]:
    """0.9 max |e| + 0.1 mean |e| over the steps of every segment that count (R2D2, section 2.3)."""
    size = torch.where(counts, errors.abs(), torch.zeros_like(errors))
    mean = size.sum(1) / counts.sum(1).clamp(min=1)
    return LARGEST_SHARE * size.amax(1) + (1.0 - LARGEST_SHARE) * mean
