"""TwoGates: its rules by hand, its demonstrations, and which action heads learn to pass from them."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import InvalidAction

from rltransformers.agents import DecisionTransformer
from rltransformers.core.errors import ConfigError
from rltransformers.data import record
from rltransformers.envs.memory_rules import TwoGates

ENV, DEMONSTRATIONS = "rltransformers/TwoGates-v0", "demonstration:TwoGates"


def test_either_gate_lets_through_and_the_middle_does_not() -> None:
    env = gymnasium.make(ENV)
    seen, _ = env.reset(seed=0)
    for side in (1, -1):
        assert np.hypot(*seen) == pytest.approx(0.7)
        before = seen
        seen, *rest = env.step(side * seen)
        assert rest == [0.0, False, False, {}] and not np.allclose(seen, before)
    turned = 0.39 * seen[::-1] * [-1, 1]  # 0.7 * 0.39 = 0.273 to the side: inside 0.3
    assert env.step((-seen + turned).astype(np.float32))[1:] == (1.0, True, False, {"is_success": True})
    for action in (np.zeros(2, np.float32), 0.55 * seen):
        env.reset(seed=1)
        assert env.step(action)[1:] == (0.0, True, False, {"is_success": False})
    env.reset()
    for wrong in ([0.0, 1.5], [np.nan, 0.0]):
        with pytest.raises(InvalidAction, match=r"must lie in -1\.0\.\.1\.0"):
            env.unwrapped.step(np.array(wrong))


def test_demonstrations_take_both_gates_and_pass() -> None:
    data = record(ENV, DEMONSTRATIONS, episodes=2_000, num_envs=50, seed=0)
    assert data.returns.mean() > 0.99 and set(data.lengths.tolist()) <= {1, 2, 3}
    first = np.cumsum([0, *(data.lengths + 1)[:-1]])
    seen, action = data.observations[""][first], data.actions[""][np.cumsum([0, *data.lengths[:-1]])]
    along = (seen * action).sum(1)
    assert abs(float((along > 0).mean()) - 0.5) < 0.05  # 4 standard deviations of 2,000 coins
    assert np.abs(action.mean(0)).max() < 0.05
    angles = np.arctan2(*seen.T)
    assert np.histogram(angles, 8, (-np.pi, np.pi))[0].min() > 180  # of 250 in each eighth


def test_no_normal_distribution_of_the_demonstrations_passes_often() -> None:
    generator, passed = np.random.default_rng(0), []
    for angle in np.linspace(0, np.pi / 2, 7):
        gate = TwoGates.distance * np.array([np.cos(angle), np.sin(angle)])
        demonstrations = TwoGates.demonstrate(np.tile(gate, (4_000, 1)), generator)
        drawn = demonstrations.mean(0) + demonstrations.std(0) * generator.standard_normal((20_000, 2))
        distance = np.minimum(np.hypot(*(drawn - gate).T), np.hypot(*(drawn + gate).T))
        passed.append(float((distance <= TwoGates.radius).mean()))
    assert max(passed) == pytest.approx(0.40, abs=0.02) and np.mean(passed) < 0.3


@pytest.mark.parametrize(
    ("environment", "behavior", "message"),
    [
        (ENV, "demonstration:TwoGate", "no demonstrations of 'TwoGate'; did you mean 'TwoGates'"),
        (ENV, "demonstration:Stitching", "known: TwoGates"),
        ("Pendulum-v1", DEMONSTRATIONS, "acts in TwoGates alone, and the environment has other spaces"),
    ],
)
def test_demonstrations_are_of_their_task(environment: str, behavior: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        record(environment, behavior, episodes=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "deterministic", "low", "high"),
    [("deterministic", True, 0.0, 0.2), ("gaussian", False, 0.0, 0.2), ("mixture", True, 0.9, 1.0)],
)
def test_a_head_with_one_mode_fails_and_one_with_several_succeeds(
    head: Any, deterministic: bool, low: float, high: float
) -> None:
    """A flow learns it, too, in several times as many updates (docs/lab/action_heads.md)."""
    data = record(ENV, DEMONSTRATIONS, episodes=500, num_envs=50, seed=0)
    backbone = {"width": 32, "layers": 1, "heads": 1, "dropout": 0.0}
    model = DecisionTransformer(
        "DTPolicy", data, mode="bc", context_length=1, batch_size=128, learning_rate=1e-2, warmup_steps=20, seed=0,
        max_grad_norm=1.0, action_head=head, device="cpu", policy_kwargs={"backbone": backbone},
    )  # fmt: skip
    model.learn(250)
    result = model.evaluate(ENV, episodes=200, num_envs=50, deterministic=deterministic)[0]
    assert low <= result.mean <= high
