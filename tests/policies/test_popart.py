"""PopArt: the statistics follow the targets, the values stay, and a fit in their units is a fit in any unit."""

from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rltransformers.policies.actor_critic import GTrXLPolicy
from rltransformers.policies.popart import LEAST, MOST, PopArt

BACKBONE = {"preset": "gtrxl", "width": 8, "layers": 1, "heads": 2, "memory": 4}


def head_of(step: float = 0.3) -> PopArt:
    torch.manual_seed(0)
    return PopArt(nn.Linear(5, 1), step)


def values_of(head: PopArt, features: Tensor) -> Tensor:
    return head.in_units(head(features).squeeze(-1)).detach()


def targets(mean: float, deviation: float, count: int = 200) -> Tensor:
    """Of exactly this mean and deviation."""
    numbers = torch.randn(count, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    numbers = (numbers - numbers.mean()) / numbers.std(correction=0)
    return (mean + deviation * numbers).float()


def test_a_new_head_gives_the_values_of_the_layer_it_took_over() -> None:
    linear, features = nn.Linear(5, 1), torch.randn(7, 5)
    head = PopArt(linear, 0.1)
    assert torch.equal(values_of(head, features), linear(features).squeeze(-1).detach())
    assert head.weight is linear.weight and head.bias is linear.bias  # the optimizer's


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 2.0), (-300.0, 7.0), (5.0, 2e-3), (1e4, 3e3)])
def test_no_value_changes_when_the_statistics_do(mean: float, deviation: float) -> None:
    head, features = head_of(), torch.randn(64, 5)
    for number in range(10):
        before = values_of(head, features)
        head.follow(targets(mean * (1 + number / 10), deviation))
        # the goal stated for this law: 1e-6 of the scale that values have, which is what float32 resolves
        atol = 1e-6 * max(1.0, float(head.shift.abs()), float(head.scale))
        torch.testing.assert_close(values_of(head, features), before, atol=atol, rtol=1e-6)
    assert float(head.scale) != 1.0


def test_statistics_are_running_means_of_the_targets_and_of_their_squares() -> None:
    head = head_of(0.25)
    head.follow(torch.tensor([1.0, 3.0, 8.0]))
    mean, square = 0.25 * 4.0, 0.75 + 0.25 * 74.0 / 3
    assert float(head.mean) == pytest.approx(mean) and float(head.square) == pytest.approx(square)
    assert float(head.shift) == pytest.approx(mean) and float(head.scale) == pytest.approx((square - mean**2) ** 0.5)


def test_targets_end_up_with_mean_zero_and_deviation_one() -> None:
    head = head_of()
    for _ in range(100):
        head.follow(targets(2000.0, 0.5))
    assert float(head.shift) == pytest.approx(2000.0)
    assert float(head.scale) == pytest.approx(0.5, rel=1e-4)  # float32 squares would leave a deviation of 0 or 0.7


@pytest.mark.parametrize(("deviation", "bound"), [(0.0, LEAST), (1e8, MOST)])
def test_the_deviation_stays_within_its_bounds(deviation: float, bound: float) -> None:
    head = head_of(1.0)
    head.follow(targets(3.0, deviation))
    assert float(head.scale) == pytest.approx(bound)


def test_learning_is_the_same_whatever_the_unit_of_the_reward() -> None:
    """Gradient steps on squared errors in units of the head, with returns in cents and in euros."""

    def fitted(unit: float) -> Tensor:
        head, features = head_of(1.0), torch.randn(64, 5, generator=torch.Generator().manual_seed(2))
        wanted = unit * (features @ torch.arange(5.0) + 3.0)
        sgd = torch.optim.SGD(head.parameters(), lr=0.1)
        with torch.no_grad():  # a value of 0 is one in any unit
            head.weight.zero_(), head.bias.zero_()
        for _ in range(20):
            head.follow(wanted)
            error = (wanted - head.in_units(head(features).squeeze(-1))).square().mean() / head.scale**2
            sgd.zero_grad()
            error.backward()
            sgd.step()
        return values_of(head, features) / unit

    torch.testing.assert_close(fitted(1.0), fitted(100.0), atol=1e-4, rtol=1e-4)  # float32 sums of numbers around 500


@pytest.mark.parametrize("shared", [True, False])
def test_a_policy_keeps_values_and_optimizer_when_it_begins_to_normalize(shared: bool) -> None:
    box: Any = spaces.Box(-1.0, 1.0, (3,))
    policy = GTrXLPolicy(box, spaces.Discrete(3), lambda _: 1e-3, backbone=BACKBONE, shared_backbone=shared)
    state, first = policy.initial_state(4), torch.ones(4, dtype=torch.bool)
    observation = {"": torch.randn(4, 3)}
    before = policy.values(observation, state, first).clone()
    head = policy.normalize_values(0.5)
    assert policy.value_units == 1.0
    head.follow(targets(50.0, 4.0))
    torch.testing.assert_close(policy.values(observation, state, first), before, atol=1e-5, rtol=0)  # 1e-6 of 25
    assert float(policy.value_units) == pytest.approx(float(head.scale) ** -2)
    learned = {id(parameter) for parameter in policy.optimizer.param_groups[0]["params"]}
    assert learned == {id(parameter) for parameter in policy.parameters()}
    assert {"value_net.mean", "value_net.square", "value_net.shift", "value_net.scale"} <= set(policy.state_dict())


def test_a_head_takes_the_units_of_another_and_no_value_changes() -> None:
    head, other, features = head_of(), head_of(), torch.randn(7, 5)
    head.follow(targets(-3.0, 0.5))
    other.follow(targets(200.0, 40.0))
    before = values_of(head, features)
    head.take_units(other)
    torch.testing.assert_close(values_of(head, features), before, atol=1e-4, rtol=1e-5)
    for name in ("shift", "scale", "mean", "square"):
        assert torch.equal(getattr(head, name), getattr(other, name)), name
