"""The losses of V-MPO: known identities, limits and numbers worked out by hand; rlax stands in ``rlax_twins.py``."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from rltransformers.algorithms.vmpo import (
    MIN_MULTIPLIER,
    Multipliers,
    VMPOBounds,
    VMPOLoss,
    better_half,
    bound_loss,
    divergence_from_uniform,
    temperature_loss,
    vmpo_loss,
    weighted_likelihood_loss,
    weights_of,
)
from rltransformers.data.rollout import Recorded

EVERY = torch.ones(3, 8, dtype=torch.bool)


@dataclass(frozen=True)
class Now:
    """Estimates of the policy of now."""

    log_probs: Tensor
    values: Tensor
    entropy: Tensor
    log_barrier: None = None


def recorded(advantages: Tensor, returns: Tensor, counts: Tensor) -> Recorded:
    """Steps whose values and log-probabilities are not looked at."""
    return Recorded(
        torch.full_like(returns, torch.nan), torch.full_like(returns, torch.nan), advantages, returns, counts
    )


def numbers(seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


def loss_of(advantages: Tensor, counts: Tensor = EVERY, bounds: VMPOBounds | None = None, **changed: Any) -> VMPOLoss:
    parts = {"log_probs": numbers(1) - 2.0, "values": numbers(2), "entropy": numbers(3), "divergence": numbers(4) ** 2}
    parts |= {"returns": numbers(5), "temperature": number(0.7), "penalty": number(1.3)} | changed
    return vmpo_loss(
        Now(parts["log_probs"], parts["values"], parts["entropy"]),
        recorded(advantages, parts["returns"], counts),
        {"classes": parts["divergence"]},
        parts["temperature"],
        {"classes": parts["penalty"]},
        VMPOBounds(0.1, {"classes": 0.01}, vf_coef=0.5) if bounds is None else bounds,
    )


# The E-step --------------------------------------------------------------------------------------------------


def test_the_better_half_is_what_is_not_below_the_median_and_keeps_ties() -> None:
    cases = {
        (4.0, 1.0, 3.0, 2.0): [True, False, True, False],
        (5.0, 1.0, 3.0, 2.0, 4.0): [True, False, True, False, True],  # with the median itself
        (2.0, 2.0, 2.0, 1.0): [True, True, True, False],  # all that tie with the last one chosen
        (7.0, 7.0): [True, True],
        (3.0,): [True],
    }
    for advantages, chosen in cases.items():
        row = torch.tensor([advantages])
        assert better_half(row, torch.ones_like(row, dtype=torch.bool)).tolist() == [chosen]


def test_the_median_is_that_of_the_steps_that_count() -> None:
    advantages = torch.tensor([[9.0, 1.0, 8.0, 2.0, 3.0, 7.0]])
    counts = torch.tensor([[False, True, False, True, True, True]])
    assert better_half(advantages, counts).tolist() == [[False, False, False, False, True, True]]


def test_weights_are_a_distribution_over_the_better_half() -> None:
    advantages = numbers(scale=1e4)  # the exponentials alone would overflow
    chosen = better_half(advantages, EVERY)
    weights = weights_of(advantages, chosen, torch.tensor(3.0))
    assert int(chosen.sum()) == 12
    assert float(weights.sum()) == pytest.approx(1.0) and float(weights[~chosen].abs().sum()) == 0.0
    ratio = weights_of(torch.tensor([[1.0, 3.0]]), torch.ones(1, 2, dtype=torch.bool), torch.tensor(0.5))
    assert float(ratio[0, 1] / ratio[0, 0]) == pytest.approx(math.exp(2.0 / 0.5))


def test_weights_ignore_a_constant_and_the_unit_of_the_reward() -> None:
    advantages, eta = numbers(), torch.tensor(0.4)
    chosen = better_half(advantages, EVERY)
    plain = weights_of(advantages, chosen, eta)
    torch.testing.assert_close(weights_of(advantages + 100.0, chosen, eta), plain)
    torch.testing.assert_close(weights_of(advantages * 7.0, chosen, eta * 7.0), plain)
    assert bool((better_half(advantages * 7.0 + 3.0, EVERY) == chosen).all())


@pytest.mark.parametrize("eta", [0.05, 0.7, 30.0])
def test_the_temperature_falls_until_the_weights_are_as_far_from_uniform_as_its_bound(eta: float) -> None:
    """d L_eta / d eta = eps - KL(psi || uniform on D)."""
    advantages, temperature = numbers(), number(eta)
    chosen = better_half(advantages, EVERY)
    temperature_loss(advantages, chosen, temperature, 0.1).backward()
    assert temperature.grad is not None
    divergence = divergence_from_uniform(weights_of(advantages, chosen, temperature), chosen)
    assert float(temperature.grad) == pytest.approx(0.1 - float(divergence), abs=1e-12)  # float64


@pytest.mark.parametrize("offset", [0.0, -1e4, 1e6])
def test_the_temperature_ignores_what_all_advantages_have_in_common(offset: float) -> None:
    advantages = (numbers() + offset).float()  # the differences of what is left by rounding, in float64 and in float32
    chosen, found = better_half(advantages, EVERY), []
    for kind in (torch.float64, torch.float32):
        temperature = torch.tensor(1.0, dtype=kind, requires_grad=True)
        loss = temperature_loss(advantages.to(kind), chosen, temperature, 0.1)
        loss.backward()
        found.append((float(loss.detach()), float(temperature.grad)))  # type: ignore[arg-type]
    # Sums of terms of order 1 in float32, and the offset itself, which the loss contains.
    assert found[1][0] == pytest.approx(found[0][0], abs=1e-5, rel=1e-6)
    assert found[1][1] == pytest.approx(found[0][1], abs=1e-5)


def test_at_the_best_temperature_the_divergence_of_the_weights_is_its_bound() -> None:
    advantages = numbers(scale=20.0)
    chosen = better_half(advantages, EVERY)
    low, high = 1e-3, 1e3  # the loss is convex: its slope changes sign once
    for _ in range(80):
        middle = number(math.sqrt(low * high))
        temperature_loss(advantages, chosen, middle, 0.25).backward()
        assert middle.grad is not None
        low, high = (float(middle.detach()), high) if middle.grad < 0 else (low, float(middle.detach()))
    found = divergence_from_uniform(weights_of(advantages, chosen, torch.tensor(high)), chosen)
    assert float(found) == pytest.approx(0.25, abs=1e-6)  # 80 halvings end at rounding; the slope there is about 1


def test_equal_advantages_weigh_the_same_at_any_temperature() -> None:
    advantages = torch.full((2, 3), -4.0)
    chosen = better_half(advantages, torch.ones(2, 3, dtype=torch.bool))
    torch.testing.assert_close(weights_of(advantages, chosen, torch.tensor(1e-8)), torch.full((2, 3), 1 / 6))


# The M-step --------------------------------------------------------------------------------------------------


def test_the_policy_loss_sends_gradient_to_the_policy_alone() -> None:
    advantages, eta = numbers().requires_grad_(), number(0.7)
    log_probs = numbers(1).requires_grad_()
    chosen = better_half(advantages, EVERY)
    weights = weights_of(advantages, chosen, eta)
    weighted_likelihood_loss(log_probs, weights).backward()
    assert advantages.grad is None and eta.grad is None
    assert log_probs.grad is not None
    torch.testing.assert_close(log_probs.grad, -weights)


def test_the_worse_half_has_no_part_in_the_policy_loss_even_where_it_is_impossible() -> None:
    weights = torch.tensor([[0.25, 0.75, 0.0]])
    log_probs = torch.tensor([[-1.0, -2.0, -math.inf]])
    assert float(weighted_likelihood_loss(log_probs, weights)) == pytest.approx(1.75)


def test_a_penalty_rises_where_the_divergence_exceeds_its_bound_and_falls_below() -> None:
    for divergence, sign in ((0.02, -1.0), (0.005, 1.0)):
        alpha, kl = number(3.0), torch.full((3, 8), divergence, dtype=torch.float64, requires_grad=True)
        loss = bound_loss(kl, EVERY, alpha, 0.01)
        assert float(loss.detach()) == pytest.approx(3.0 * 0.01)  # alpha (eps - KL) + alpha KL
        loss.backward()
        assert alpha.grad is not None and kl.grad is not None
        assert float(alpha.grad) == pytest.approx(0.01 - divergence) and float(alpha.grad.sign()) == sign
        torch.testing.assert_close(kl.grad, torch.full_like(kl, 3.0 / 24))  # of all states, not the chosen half


def test_every_part_of_the_loss_has_its_weight() -> None:
    advantages = numbers()
    loss = loss_of(advantages)
    parts = loss.policy + loss.temperature + 1.3 * 0.01 + 0.5 * loss.value
    torch.testing.assert_close(loss.total.detach(), parts.double())
    torch.testing.assert_close(loss.value, 0.5 * (numbers(5) - numbers(2)).square().mean())
    torch.testing.assert_close(loss.divergences["classes"], (numbers(4) ** 2).mean())


def test_rows_that_do_not_count_change_nothing() -> None:
    counts = torch.rand(3, 8, generator=torch.Generator().manual_seed(1)) < 0.6
    names = {"log_probs": 1, "values": 2, "entropy": 3, "divergence": 4, "returns": 5}

    def total(fill: float) -> tuple[Tensor, Tensor]:
        # Other numbers in every part, so that no two of them cancel.
        parts: dict[str, Any] = {}
        for name, seed in names.items():
            parts[name] = torch.where(counts, numbers(seed).abs(), fill * seed)
        learned = [parts[name].requires_grad_() for name in ("log_probs", "values", "divergence")]
        loss = loss_of(torch.where(counts, numbers(), fill), counts, **parts).total
        return loss.detach(), torch.stack(torch.autograd.grad(loss, learned))

    (one, _), (other, gradients) = total(0.0), total(1e3)
    torch.testing.assert_close(one, other)
    assert bool(gradients[:, ~counts].eq(0.0).all()) and bool((gradients[:, counts].abs().sum(1) > 0.1).all())


def test_multipliers_start_where_asked_and_never_reach_zero() -> None:
    multipliers = Multipliers(2.0, {"mean": 5.0, "covariance": 0.1})
    assert float(multipliers.temperature.detach()) == pytest.approx(2.0)  # not the softplus of a logarithm
    found = {kind: float(value.detach()) for kind, value in multipliers.penalties.items()}
    assert found == pytest.approx({"mean": 5.0, "covariance": 0.1})
    adam = torch.optim.Adam(multipliers.parameters(), lr=30.0)
    multipliers.temperature.backward()
    adam.step()
    multipliers.constrain_()
    assert float(multipliers.temperature.detach()) == pytest.approx(MIN_MULTIPLIER, rel=1e-5)
