"""Losses of soft actor-critic against numbers worked out otherwise, and what they are at rest."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rltransformers.algorithms.sac import (
    Temperature,
    actor_loss,
    critic_loss,
    entropies,
    soft_values,
    temperature_loss,
)
from rltransformers.policies.soft_head import SquashedAction

EVERYWHERE = torch.ones(1, 1, dtype=torch.bool)
NO_BOX = torch.zeros(1, 1)


def test_soft_values_and_entropies_are_those_of_a_worked_example() -> None:
    """Two critics, three actions, temperature 0.5: the lower values 1, 0 and 2, each minus half its log-probability."""
    q = torch.tensor([[[[1.0, 4.0, 2.0], [3.0, 0.0, 5.0]]]])
    logs = torch.tensor([[[0.5, 0.25, 0.25]]]).log()
    expected = 0.5 * (1 - 0.5 * math.log(0.5)) + 0.25 * (0 - 0.5 * math.log(0.25)) + 0.25 * (2 - 0.5 * math.log(0.25))
    assert float(soft_values(q, logs, NO_BOX, torch.tensor(0.5))) == pytest.approx(expected)
    assert float(entropies(logs, NO_BOX)) == pytest.approx(1.5 * math.log(2))
    # A Box of density e^3 beside it takes 3 nats away.
    dense = NO_BOX + 3.0
    assert float(soft_values(q, logs, dense, torch.tensor(0.5))) == pytest.approx(expected - 1.5, rel=1e-5)
    assert float(entropies(logs, dense)) == pytest.approx(1.5 * math.log(2) - 3.0)


def test_critics_have_half_the_squared_error_of_each_where_steps_count() -> None:
    q, targets = torch.tensor([[[1.0, 3.0], [9.0, 9.0]]]), torch.tensor([[2.0, 0.0]])
    loss = critic_loss(q, targets, torch.tensor([[True, False]]))
    assert float(loss.total) == 0.5 * 1 + 0.5 * 1 and float(loss.td_error) == 1.0
    assert float(loss.q_value) == 2.0 and float(loss.target) == 2.0


def test_the_actor_rests_at_the_softmax_of_values_over_temperature() -> None:
    q, temperature = torch.tensor([[[[1.0, -0.5, 0.3, 2.0]]]]), torch.tensor(0.7)
    for logits, rests in ((q[..., 0, :] / temperature, True), (q[..., 0, :], False)):
        logits = logits.clone().requires_grad_()
        logs = logits.log_softmax(-1)
        loss = actor_loss(soft_values(q, logs, NO_BOX, temperature), entropies(logs, NO_BOX), EVERYWHERE).total
        (gradient,) = torch.autograd.grad(loss, logits)
        assert (float(gradient.abs().max()) < 1e-6) is rests


@pytest.mark.parametrize("first", ["auto_20", "auto_0.01"])
def test_the_temperature_comes_to_rest_where_the_policy_has_the_target_entropy(first: str) -> None:
    """Of a policy that is always the best for its temperature, from above and from below."""
    q, target = torch.tensor([[[1.0, -0.5, 0.3, 2.0]]]), torch.full((1, 1), 0.9)
    temperature = Temperature(first)
    optimizer = torch.optim.Adam(temperature.parameters(), 0.03)
    for _ in range(1_000):
        logs = (q / temperature.value).log_softmax(-1)
        optimizer.zero_grad()
        temperature_loss(temperature.log_ent_coef, entropies(logs, NO_BOX), target, EVERYWHERE).backward()
        optimizer.step()
    assert float(entropies((q / temperature.value).log_softmax(-1), NO_BOX)) == pytest.approx(0.9, abs=1e-3)
    assert temperature.log_ent_coef.grad is not None and abs(float(temperature.log_ent_coef.grad)) < 1e-3


def test_first_temperatures() -> None:
    assert float(Temperature("auto").value) == 1.0
    assert float(Temperature("auto_0.25").value) == pytest.approx(0.25)
    assert float(Temperature(0.0).value) == 0.0 and Temperature(0.0).fixed == 0.0
    assert Temperature("auto").fixed is None


def test_the_density_of_a_squashed_box_is_that_of_torch_and_integrates_to_1() -> None:
    leaf = SquashedAction(spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 8.0], np.float32))).double()
    generator = torch.Generator().manual_seed(0)
    output, noise = (torch.randn(50, size, generator=generator, dtype=torch.float64) for size in (4, 2))
    output = 0.5 * output  # not so far out that the action in float64 no longer tells u
    action, density = leaf.drawn(output, noise)
    normal = torch.distributions.Normal(output[:, :2], output[:, 2:].exp())
    squashed = torch.distributions.TransformedDistribution(normal, [torch.distributions.TanhTransform()])
    torch.testing.assert_close(density, squashed.log_prob(action).sum(-1), atol=1e-6, rtol=0)
    torch.testing.assert_close(leaf.log_prob(output, action), density, atol=1e-6, rtol=0)
    grid = torch.linspace(-1, 1, 200_001, dtype=torch.float64)[1:-1]
    one = SquashedAction(spaces.Box(-3.0, 3.0, (1,))).double()
    there = one.log_prob(torch.tensor([0.4, -0.2], dtype=torch.float64).expand(len(grid), 2), grid[:, None]).exp()
    assert float(torch.trapezoid(there, grid)) == pytest.approx(1.0, abs=1e-4)


def test_far_from_the_middle_densities_stay_finite_and_keep_a_gradient() -> None:
    leaf = SquashedAction(spaces.Box(-1.0, 1.0, (1,)))
    output = torch.tensor([[30.0, 1.0], [-30.0, 1.0], [0.0, -40.0], [0.0, 40.0]], requires_grad=True)
    action, density = leaf.drawn(output, torch.full((4, 1), 0.5))
    assert bool(torch.isfinite(density).all()) and float(action.detach().abs().max()) <= 1.0
    density.sum().backward()
    assert output.grad is not None and bool(torch.isfinite(output.grad).all())
    assert float(output.grad[0, 0]) == pytest.approx(2.0)  # of -log(1 - tanh(u)^2) far out
    assert bool(torch.isfinite(leaf.log_prob(output.detach(), action.detach())).all())


def test_samples_reach_the_bounds_of_the_environment_and_no_further() -> None:
    space = spaces.Box(np.array([[-2.0], [0.1]], np.float32), np.array([[2.0], [0.3]], np.float32))
    leaf = SquashedAction(space)
    output = torch.tensor([50.0, -50.0, 0.0, 0.0])
    executed = leaf.execute(leaf.decode(output))
    assert executed.shape == (2, 1) and space.contains(executed.numpy())
    torch.testing.assert_close(executed.flatten(), torch.tensor([2.0, 0.1]))
    torch.testing.assert_close(leaf.as_drawn(executed).flatten(), torch.tensor([1.0, -1.0]))
