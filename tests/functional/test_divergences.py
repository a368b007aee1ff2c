"""Divergences of the distributions of actions, against those of ``torch.distributions``."""

import torch
from torch import Tensor, distributions

from rltransformers.functional.divergences import (
    bernoulli_divergence,
    categorical_divergence,
    gaussian_covariance_divergence,
    gaussian_mean_divergence,
)


def pair(*shape: int) -> tuple[Tensor, Tensor]:
    """Two tensors of parameters, in float64."""
    generator = torch.Generator().manual_seed(sum(shape))
    one, other = (2.0 * torch.randn(*shape, dtype=torch.float64, generator=generator) for _ in range(2))
    return one, other


def normal(mean: Tensor, log_std: Tensor) -> distributions.Distribution:
    return distributions.Independent(distributions.Normal(mean, log_std.exp()), 1)


def test_divergences_of_classes_and_bits_are_summed_over_the_components() -> None:
    old, new = pair(4, 3, 5)
    expected = distributions.kl_divergence(distributions.Categorical(logits=old), distributions.Categorical(logits=new))
    torch.testing.assert_close(categorical_divergence(old.log_softmax(-1), new.log_softmax(-1)), expected.sum(-1))
    old, new = pair(4, 3)
    expected = distributions.kl_divergence(distributions.Bernoulli(logits=old), distributions.Bernoulli(logits=new))
    torch.testing.assert_close(bernoulli_divergence(old, new), expected.sum(-1))


def test_the_decoupled_parts_are_divergences_of_normals_that_differ_in_one_way() -> None:
    old_mean, new_mean = pair(4, 2)
    old_log, new_log = pair(4, 2)[0] + 0.3, pair(4, 2)[1]
    of_mean = distributions.kl_divergence(normal(old_mean, old_log), normal(new_mean, old_log))
    torch.testing.assert_close(gaussian_mean_divergence(old_mean, new_mean, old_log), of_mean)
    of_covariance = distributions.kl_divergence(normal(old_mean, old_log), normal(old_mean, new_log))
    torch.testing.assert_close(gaussian_covariance_divergence(old_log, new_log), of_covariance)


def test_a_policy_is_no_divergence_away_from_itself_and_no_slope() -> None:
    x = torch.tensor([[30.0, -30.0, 0.5]], dtype=torch.float64, requires_grad=True)
    fixed = x.detach()
    found = {
        "classes": categorical_divergence(fixed.log_softmax(-1)[None], x.log_softmax(-1)[None]),
        "bits": bernoulli_divergence(fixed, x),
        "mean": gaussian_mean_divergence(fixed, x, torch.zeros(3, dtype=torch.float64)),
        "covariance": gaussian_covariance_divergence(fixed, x),
    }
    for name, divergence in found.items():
        (gradient,) = torch.autograd.grad(divergence.sum(), x)
        assert abs(float(divergence.detach())) < 1e-12 and float(gradient.abs().max()) < 1e-12, name  # float64
