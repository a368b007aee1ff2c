"""Kullback-Leibler divergences KL(old || new) of distributions of actions, in nats. Axes: C components, N classes."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def categorical_divergence(old: Float[Tensor, "... C N"], new: Float[Tensor, "... C N"]) -> Float[Tensor, "..."]:
    """Of independent classes, given their log-probabilities; the sum over the components.

    Where a component lacks a class, both logarithms must be equal and finite.
    """
    return (old.exp() * (old - new)).sum((-2, -1))


def bernoulli_divergence(old: Float[Tensor, "... C"], new: Float[Tensor, "... C"]) -> Float[Tensor, "..."]:
    """Of independent bits, given their logits; the sum over the bits."""
    # With s the logistic function, log s(x) = x + log s(-x): p (old - new) is what the bit adds to both logarithms.
    return (old.sigmoid() * (old - new) + F.logsigmoid(-old) - F.logsigmoid(-new)).sum(-1)


def gaussian_mean_divergence(
    old_mean: Float[Tensor, "... C"], new_mean: Float[Tensor, "... C"], old_log_std: Float[Tensor, "*#n C"]
) -> Float[Tensor, "..."]:
    """Of diagonal normal distributions that differ in their means only, both with the old deviations.

    1/2 (mean - mean_old)' S_old^-1 (mean - mean_old): the first part of the decoupled divergence of V-MPO (arXiv
    1909.12238, eq. 26, as in MPO, arXiv 1812.02256).
    """
    return 0.5 * ((new_mean - old_mean) * (-old_log_std).exp()).square().sum(-1)


def gaussian_covariance_divergence(
    old_log_std: Float[Tensor, "*n C"], new_log_std: Float[Tensor, "*n C"]
) -> Float[Tensor, "*n"]:
    """Of diagonal normal distributions that differ in their deviations only.

    1/2 [tr(S^-1 S_old) - d + log(|S| / |S_old|)]: the second part of the decoupled divergence.
    """
    change = new_log_std - old_log_std
    return 0.5 * (torch.expm1(-2.0 * change) + 2.0 * change).sum(-1)
