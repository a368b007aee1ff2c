"""Soft actor-critic on recorded segments (arXiv 1801.01290, 1812.05905; classes: 1910.07207).

Axes: B segments, T steps, L of them learned, N critics, J combinations of countable actions (1 without), "*n" any.
Rows of a segment are those of ``algorithms.dqn``. An action has two parts: numbers of its Boxes, of which one sample is
drawn, and what can be counted, over which every mean is an exact sum.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rltransformers.algorithms.loss import Loss
from rltransformers.core.errors import ConfigError
from rltransformers.functional.modules import masked_mean

MIN_TEMPERATURE = 1e-8


@dataclass(frozen=True)
class SACCriticLoss(Loss):
    """What the loss of the critics is made of."""

    td_loss: Tensor
    td_error: Tensor
    q_value: Tensor
    target: Tensor


@dataclass(frozen=True)
class SACActorLoss(Loss):
    """What the loss of the actor is made of, and the mean entropy of its policy."""

    actor_loss: Tensor
    entropy: Tensor


class Temperature(nn.Module):
    """The weight of the entropy: a number, or learned through its logarithm, which Adam moves by a part of itself.

    Args:
        ent_coef: a number, which stays; "auto", learned from 1 on; or "auto_0.1", learned from 0.1 on.

    Raises:
        ConfigError: for another text, or a first value that is not positive.
    """

    def __init__(self, ent_coef: str | float) -> None:
        super().__init__()
        self.fixed = None if isinstance(ent_coef, str) else float(ent_coef)
        first = _first_value(ent_coef) if isinstance(ent_coef, str) else float(ent_coef)
        self.log_ent_coef = nn.Parameter(torch.tensor(math.log(max(first, MIN_TEMPERATURE))))

    @property
    def value(self) -> Float[Tensor, ""]:
        """The temperature, without gradient."""
        log = self.log_ent_coef.detach()
        return log.exp() if self.fixed is None else torch.full_like(log, self.fixed)


def _first_value(ent_coef: str) -> float:
    word, _, number = ent_coef.partition("_")
    try:
        first = float(number) if number else 1.0
    except ValueError:
        first = math.nan
    if word != "auto" or not 0.0 < first < math.inf or ent_coef.endswith("_"):
        raise ConfigError(
            f"ent_coef is a number, 'auto', or 'auto_' and a positive first value, got {ent_coef!r}; write 'auto_0.1'"
        )
    return first


def soft_values(
    q: Float[Tensor, "*n N J"],
    log_probs: Float[Tensor, "*n J"],
    log_density: Float[Tensor, "*n"],
    temperature: Float[Tensor, ""],
) -> Float[Tensor, "*n"]:
    """sum_j p_j (min_i Q_ij - temperature (log p_j + log density)): what a policy is worth, its entropy included."""
    log_chances = log_probs + log_density.unsqueeze(-1)
    return (log_probs.exp() * (q.amin(-2) - temperature * log_chances)).sum(-1)


def entropies(log_probs: Float[Tensor, "*n J"], log_density: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Entropy of the policy in nats: exact of what can be counted, estimated by the drawn action of Boxes."""
    return -(log_probs.exp() * log_probs).sum(-1) - log_density


def critic_loss(q: Float[Tensor, "B L N"], targets: Float[Tensor, "B L"], counts: Bool[Tensor, "B L"]) -> SACCriticLoss:
    """Half the squared error of the value of the taken action, summed over critics, mean over steps that count."""
    errors = targets.unsqueeze(-1) - q
    loss = masked_mean(0.5 * errors.square().sum(-1), counts)
    found = errors.detach().mean(-1)
    return SACCriticLoss(
        total=loss,
        td_loss=loss.detach(),
        td_error=masked_mean(errors.detach().abs().mean(-1), counts),
        q_value=masked_mean(targets - found, counts),
        target=masked_mean(targets, counts),
    )


def actor_loss(
    values: Float[Tensor, "B L"], entropy: Float[Tensor, "B L"], counts: Bool[Tensor, "B L"]
) -> SACActorLoss:
    """Minus the mean of the soft values of the policy over steps that count."""
    loss = -masked_mean(values, counts)
    return SACActorLoss(loss, loss.detach(), masked_mean(entropy.detach(), counts))


def temperature_loss(
    log_ent_coef: Float[Tensor, ""],
    entropy: Float[Tensor, "B L"],
    target_entropy: Float[Tensor, "B L"],
    counts: Bool[Tensor, "B L"],
) -> Float[Tensor, ""]:
    """log temperature x mean(entropy - target): grows the temperature of a policy that is too certain."""
    return log_ent_coef * masked_mean((entropy - target_entropy).detach(), counts)
