"""The losses of V-MPO (Song et al. 2020, arXiv 1909.12238) on recorded segments. Axes: B environments, T steps.

The E-step weighs the better half of the steps; the M-step makes their actions likelier within bounds of divergence. The
temperature eta of the first and one penalty alpha per bound of the second are learned along.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rltransformers.algorithms.loss import Loss
from rltransformers.algorithms.ppo import Estimates
from rltransformers.data.rollout import Recorded
from rltransformers.functional.modules import masked_mean

MIN_MULTIPLIER = 1e-8


@dataclass(frozen=True)
class VMPOLoss(Loss):
    """What the loss is made of.

    ``value`` is in the units of the returns. ``weights_divergence`` is that of the weights from uniform ones, bounded
    by ``eps_eta``; ``divergences`` are those of the policy from the one that acted, by kind.
    """

    policy: Tensor
    temperature: Tensor
    value: Tensor
    entropy: Tensor
    weights_divergence: Tensor
    divergences: Mapping[str, Tensor]


@dataclass(frozen=True)
class VMPOBounds:
    """Bounds of the E-step and, by kind of divergence, of the M-step; ``vf_coef`` is the weight of the value error."""

    eps_eta: float
    eps_alpha: Mapping[str, float]
    vf_coef: float


class Multipliers(nn.Module):
    """The temperature and one penalty per kind of divergence; positive, because their logarithms are learned.

    A step of Adam on a logarithm changes a multiplier by a part of itself, so that its rate need not know the units of
    the reward, which the temperature has. They start at ``temperature`` and ``penalties``, by kind of divergence.
    """

    def __init__(self, temperature: float, penalties: Mapping[str, float]) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))
        self.log_penalties = nn.ParameterDict(
            {kind: nn.Parameter(torch.tensor(math.log(value))) for kind, value in penalties.items()}
        )

    @property
    def temperature(self) -> Tensor:
        return self.log_temperature.exp()

    @property
    def penalties(self) -> dict[str, Tensor]:
        return {kind: value.exp() for kind, value in self.log_penalties.items()}

    @torch.no_grad()
    def constrain_(self) -> None:
        """Keep every multiplier at ``MIN_MULTIPLIER`` or above."""
        for parameter in self.parameters():
            parameter.clamp_(min=math.log(MIN_MULTIPLIER))


def vmpo_loss(
    now: Estimates,
    batch: Recorded,
    divergences: Mapping[str, Float[Tensor, "B T"]],
    temperature: Tensor,
    penalties: Mapping[str, Tensor],
    bounds: VMPOBounds,
) -> VMPOLoss:
    """L_pi + L_eta + the sum of L_alpha + the weighted value error (eq. 3 to 5 and section 4.1).

    ``divergences`` are KL(policy that acted || policy of now) of every step, by kind. At least one step must count.
    """
    chosen = better_half(batch.advantages, batch.counts)
    weights = weights_of(batch.advantages, chosen, temperature)
    policy = weighted_likelihood_loss(now.log_probs, weights)
    of_temperature = temperature_loss(batch.advantages, chosen, temperature, bounds.eps_eta)
    value = 0.5 * masked_mean((batch.returns - now.values).square(), batch.counts)
    total = policy + of_temperature + bounds.vf_coef * value
    for kind, divergence in divergences.items():
        total = total + bound_loss(divergence, batch.counts, penalties[kind], bounds.eps_alpha[kind])
    return VMPOLoss(
        total=total,
        policy=policy.detach(),
        temperature=of_temperature.detach(),
        value=value.detach(),
        entropy=masked_mean(now.entropy, batch.counts).detach(),
        weights_divergence=divergence_from_uniform(weights, chosen),
        divergences={kind: masked_mean(each, batch.counts).detach() for kind, each in divergences.items()},
    )


def better_half(advantages: Float[Tensor, "B T"], counts: Bool[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """The steps that count whose advantage is not below the median: one half, with the odd one and all that tie."""
    found = advantages[counts]
    least = found.kthvalue(len(found) // 2 + 1).values  # the median, or the higher of the two numbers around it
    return counts & (advantages >= least)


def weights_of(
    advantages: Float[Tensor, "B T"], chosen: Bool[Tensor, "B T"], temperature: Tensor
) -> Float[Tensor, "B T"]:
    """psi = exp(A / eta), which sums to 1 over the chosen steps and is 0 elsewhere; without gradient (eq. 3)."""
    with torch.no_grad():
        logits, _ = _logits(advantages, chosen, temperature)
        return logits.flatten().softmax(0).view_as(advantages)


def _logits(
    advantages: Float[Tensor, "B T"], chosen: Bool[Tensor, "B T"], temperature: Tensor
) -> tuple[Float[Tensor, "B T"], Float[Tensor, ""]]:
    """(A - highest A) / eta, and the highest A; what all have in common would drown the differences in rounding."""
    highest = advantages.masked_fill(~chosen, -math.inf).amax()
    return ((advantages - highest) / temperature).masked_fill(~chosen, -math.inf), highest


def weighted_likelihood_loss(log_probs: Float[Tensor, "B T"], weights: Float[Tensor, "B T"]) -> Tensor:
    """L_pi = - sum psi log pi(a | s)."""
    return -(weights * torch.where(weights > 0, log_probs, torch.zeros_like(log_probs))).sum()


def temperature_loss(
    advantages: Float[Tensor, "B T"], chosen: Bool[Tensor, "B T"], temperature: Tensor, bound: float
) -> Tensor:
    """L_eta = eta eps + eta log mean exp(A / eta), the mean over the chosen steps (eq. 4); gradient to eta alone.

    Its gradient is eps - KL(psi || uniform on the chosen steps).
    """
    logits, highest = _logits(advantages.detach(), chosen, temperature)
    return highest + temperature * (bound + logits.flatten().logsumexp(0) - chosen.sum().to(logits.dtype).log())


def bound_loss(divergence: Float[Tensor, "B T"], counts: Bool[Tensor, "B T"], penalty: Tensor, bound: float) -> Tensor:
    """L_alpha: the mean of alpha (eps - sg[KL]) + sg[alpha] KL over all steps that count (eq. 5)."""
    mean = masked_mean(divergence, counts)
    return penalty * (bound - mean.detach()) + penalty.detach() * mean


def divergence_from_uniform(weights: Float[Tensor, "B T"], chosen: Bool[Tensor, "B T"]) -> Tensor:
    """KL(psi || uniform on the chosen steps) in nats: what ``eps_eta`` bounds."""
    return torch.special.xlogy(weights, weights * chosen.sum()).sum()
