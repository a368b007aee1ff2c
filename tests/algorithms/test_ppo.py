"""The clipped objective, worked out by hand and against Stable-Baselines3's formulas."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from rltransformers.algorithms.ppo import (
    LEAST_SHARE,
    PPOLoss,
    PPOWeights,
    clipped_surrogate,
    deviation_over,
    explained_variance,
    next_rate_share,
    ppo_loss,
    standard_scores,
    value_error,
)
from rltransformers.data.rollout import Recorded
from rltransformers.functional.modules import masked_mean

WEIGHTS = PPOWeights(clip_range=0.2, clip_range_vf=None, ent_coef=0.0, vf_coef=0.0)


@dataclass(frozen=True)
class Now:
    """Estimates of the policy of now."""

    log_probs: Tensor
    values: Tensor
    entropy: Tensor
    log_barrier: Tensor | None = None


def recorded(log_probs: Tensor, values: Tensor, advantages: Tensor, returns: Tensor, counts: Tensor) -> Recorded:
    return Recorded(values, log_probs, advantages, returns, counts)


def test_the_surrogate_is_clipped_only_where_that_is_the_smaller_gain() -> None:
    log_ratio = torch.tensor([[1.5, 0.5, 1.5, 0.5, 1.1]]).log()
    advantages = torch.tensor([[1.0, 1.0, -1.0, -1.0, 2.0]])
    # gains capped at 1.2, losses at ratio 0.8; losses beyond the bound and gains below it count in full
    expected = torch.tensor([[1.2, 0.5, -1.5, -0.8, 2.2]])
    torch.testing.assert_close(clipped_surrogate(log_ratio, advantages, 0.2), expected)


def test_the_value_may_move_only_as_far_as_its_bound() -> None:
    new, old, target = torch.tensor([[3.0, 1.1]]), torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0, 2.0]])
    torch.testing.assert_close(value_error(new, old, target, None), torch.tensor([[1.0, 0.81]]))
    torch.testing.assert_close(value_error(new, old, target, 0.5), torch.tensor([[0.25, 0.81]]))


def test_rows_that_do_not_count_change_nothing() -> None:
    counts = torch.tensor([[True, True, False], [True, False, True]])
    inputs = [torch.randn(2, 3, requires_grad=i < 3) for i in range(7)]

    def total(fill: float) -> Tensor:
        # Other numbers in every part, so that no two of them cancel.
        parts = [torch.where(counts, x, torch.full_like(x, fill * index)) for index, x in enumerate(inputs)]
        weights = replace(WEIGHTS, ent_coef=0.1, vf_coef=0.5)
        return ppo_loss(Now(*parts[:3]), recorded(*[*parts[3:], counts]), weights).total

    torch.testing.assert_close(total(0.0), total(3.0))
    gradient = torch.autograd.grad(total(3.0), inputs[0])[0]
    assert float(gradient[~counts].abs().sum()) == 0.0


def test_equal_policies_have_ratio_one_and_no_divergence() -> None:
    x, counts = torch.randn(2, 3), torch.ones(2, 3, dtype=torch.bool)
    loss = ppo_loss(Now(x, x, x), recorded(x, x, x, x, counts), WEIGHTS)
    assert float(loss.ratio_error) == 0.0 and float(loss.approx_kl) == 0.0 and float(loss.clip_fraction) == 0.0
    assert float(loss.total) == pytest.approx(-float(x.mean()))


def test_every_part_of_the_loss_has_its_weight() -> None:
    new, old, counts = torch.randn(3, 2, 5), torch.randn(4, 2, 5), torch.ones(2, 5, dtype=torch.bool)
    barrier = torch.randn(2, 5)

    def loss(**weights: float) -> PPOLoss:
        return ppo_loss(Now(*[*new, barrier]), recorded(*[*old, counts]), replace(WEIGHTS, **weights))

    plain = loss().total
    torch.testing.assert_close(plain, -clipped_surrogate(new[0] - old[0], old[2], 0.2).mean())
    torch.testing.assert_close(loss(ent_coef=0.3).total - plain, -0.3 * new[2].mean())
    torch.testing.assert_close(loss(barrier_coef=0.3).total - plain, -0.3 * barrier.mean())
    torch.testing.assert_close(loss(vf_coef=0.3).total - plain, 0.3 * (old[3] - new[1]).square().mean())
    moved = old[1] + (new[1] - old[1]).clamp(-0.1, 0.1)
    torch.testing.assert_close(
        loss(vf_coef=0.3, clip_range_vf=0.1).total - plain, 0.3 * (old[3] - moved).square().mean()
    )


def test_the_divergence_estimate_is_that_of_schulman() -> None:
    old, new, counts = torch.zeros(1, 1), torch.full((1, 1), 0.3), torch.ones(1, 1, dtype=torch.bool)
    loss = ppo_loss(Now(new, old, old), recorded(old, old, old, old, counts), WEIGHTS)
    assert float(loss.approx_kl) == pytest.approx(math.exp(0.3) - 1 - 0.3, rel=1e-5)
    assert float(loss.ratio_error) == pytest.approx(math.exp(0.3) - 1, rel=1e-5)
    assert float(loss.clip_fraction) == 1.0


def test_normalized_advantages_have_mean_zero_and_deviation_one_over_what_counts() -> None:
    advantages, counts = torch.randn(4, 6) * 7 + 3, torch.rand(4, 6) < 0.7
    result = standard_scores(advantages, counts)
    assert float(result[counts].mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(result[counts].std(unbiased=False)) == pytest.approx(1.0, abs=1e-5)
    assert float(result[~counts].abs().sum()) == 0.0


@pytest.mark.parametrize("value", [0.1, 123.456, -7e5])
def test_equal_advantages_are_no_reason_to_move(value: float) -> None:
    counts = torch.ones(16, 128, dtype=torch.bool)
    counts[3, 5:] = False
    assert float(standard_scores(torch.full((16, 128), value), counts).abs().max()) == 0.0


def test_small_advantages_are_not_blown_up_beyond_the_bound() -> None:
    advantages, counts = torch.randn(4, 6), torch.rand(4, 6) < 0.7
    centered = torch.where(counts, advantages - advantages[counts].mean(), torch.zeros(()))
    torch.testing.assert_close(standard_scores(advantages * 1e-3, counts, least_std=0.5), centered * 1e-3 / 0.5)
    torch.testing.assert_close(
        standard_scores(advantages * 1e3, counts, least_std=0.5), standard_scores(advantages * 1e3, counts)
    )


def test_the_mean_over_nothing_is_zero() -> None:
    assert float(masked_mean(torch.full((1, 2), math.nan), torch.zeros(1, 2, dtype=torch.bool))) == 0.0
    assert float(deviation_over(torch.full((1, 2), math.nan), torch.zeros(1, 2, dtype=torch.bool))) == 0.0


def test_explained_variance_is_one_for_a_perfect_prediction_and_zero_for_a_constant() -> None:
    target, counts = torch.randn(3, 4), torch.ones(3, 4, dtype=torch.bool)
    assert explained_variance(target, target, counts) == pytest.approx(1.0)
    assert explained_variance(torch.zeros(3, 4), target, counts) == pytest.approx(0.0, abs=1e-6)
    assert math.isnan(explained_variance(target, torch.ones(3, 4), counts))


@pytest.mark.parametrize(
    ("share", "part", "following"),
    [
        (1.0, 0.0, 2 / 3),  # at once
        (1.0, 0.1, 2 / 3),
        (0.5, 0.2, 0.5),  # neither early nor late
        (0.5, 0.4, 0.5),
        (0.5, 0.5, 0.6),
        (0.5, 1.0, 0.6),  # never
        (0.9, 1.0, 1.0),
        (0.012, 0.0, LEAST_SHARE),
    ],
)
def test_the_rate_gives_way_to_updates_that_end_early_and_comes_back(
    share: float, part: float, following: float
) -> None:
    assert next_rate_share(share, part) == pytest.approx(following)
