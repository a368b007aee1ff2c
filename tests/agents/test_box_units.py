"""Actions of a Box, whatever its bounds: agents act and learn in units where these are -1 and 1."""

from functools import partial
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import DummyVecEnv

from rltransformers.agents import GTrXLPPO, GTrXLVMPO
from rltransformers.core.spaces import leaf_values
from tests.agents.test_gtrxl_ppo_checkpoint import assert_equal
from tests.agents.tiny_envs import AnySpace

SEEN = spaces.Box(-1.0, 1.0, (3,))
POLICY = {"backbone": {"preset": "gtrxl", "width": 8, "layers": 1, "heads": 2, "memory": 4}, "previous_action": True}


def ends(low: Any, high: Any, dtype: Any = np.float32) -> spaces.Box:
    return spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)


BOXES: dict[str, spaces.Box] = {
    "wide": ends([0.0, -5.0], [100.0, 1e6]),
    "narrow": ends([0.0, 3.0], [1e-3, 3.01], np.float64),
    "integers": ends([0, -300], [255, 900], np.int16),
    "matrix": ends([[-0.1, 0.0]], [[0.1, 7.0]], np.float64),
    "scalar": ends(5.0, 9.0),
    "one value": ends([3.0, 4.0], [3.0, 8.0]),
}


class Logged(AnySpace):
    """Keeps the actions that it got, of all copies; they change nothing else."""

    log: list[NDArray[Any]]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        leaves = leaf_values(self.action_space, action).values()
        self.log.append(np.concatenate([np.ravel(leaf).astype(np.float64) for leaf in leaves]))
        return super().step(action)


def trained(kind: Any, space: gym.Space[Any]) -> tuple[Any, NDArray[np.float64]]:
    """An agent after three updates, and the actions that its environments got [steps, A]."""
    env = DummyVecEnv([partial(Logged, SEEN, space)] * 2)
    log: list[NDArray[Any]] = []
    for each in env.envs:
        cast(Logged, each.unwrapped).log = log
    model = kind("GTrXLPolicy", env, n_steps=8, n_epochs=2, policy_kwargs=POLICY, seed=0, device="cpu").learn(48)
    return model, np.stack(log)


@pytest.mark.filterwarnings("ignore:.*Casting input")  # Gymnasium, of a number where a Box has no axis
@pytest.mark.parametrize("name", BOXES)
@pytest.mark.parametrize("kind", [GTrXLPPO, GTrXLVMPO])
def test_an_agent_in_a_box_is_the_one_between_minus_one_and_one_in_other_units(kind: Any, name: str) -> None:
    """Where actions change nothing: equal weights to the bit, previous actions included, and actions rescaled."""
    box = BOXES[name]
    nested, unit = (
        spaces.Dict({"arm": each, "grip": spaces.Discrete(3)}) for each in (box, spaces.Box(-1.0, 1.0, box.shape))
    )
    (model, taken), (twin, expected) = trained(kind, nested), trained(kind, unit)
    assert_equal(*([each.detach() for each in agent.policy.parameters()] for agent in (model, twin)))
    assert model.logger.name_to_value["train/first_ratio_error"] < 1e-5
    low, high = (bound.astype(np.float64).ravel() for bound in (box.low, box.high))
    arm, grip = taken[:, :-1], taken[:, -1]
    rescaled = (low + high) / 2 + expected[:, :-1] * (high - low) / 2
    step = 0.5 if np.issubdtype(box.dtype, np.integer) else 0.0
    np.testing.assert_allclose(arm, rescaled, rtol=2e-7, atol=1.001 * step + 2e-7 * np.abs([low, high]).max())
    np.testing.assert_array_equal(grip, expected[:, -1])


@pytest.mark.parametrize(("low", "high"), [(0.0, 100.0), (0.0, 1e-3), (0.0, 1e3), (-7.0, -2.0)])
def test_first_actions_spread_over_the_box(low: float, high: float) -> None:
    """Of normal numbers of deviation 1, clipped to [-1, 1]: a sixth at either bound, the median in the middle."""
    env = AnySpace(SEEN, spaces.Box(low, high, (1,)))
    model = GTrXLPPO("GTrXLPolicy", env, n_steps=8, policy_kwargs=POLICY, seed=0, device="cpu")
    seen = np.random.default_rng(0).uniform(-1, 1, (2000, 3)).astype(np.float32)
    units = (model.predict(seen)[0].astype(np.float64) - low) / (high - low) * 2 - 1
    for value, share in ((-1.0, 0.1587), (-0.5, 0.3085), (0.0, 0.5), (0.5, 0.6915), (0.999, 0.8411)):
        # Three standard errors of a share of 2,000, and the first mean, which is not quite 0.
        assert abs((units <= value + 1e-6).mean() - share) < 0.034 + 0.03, value
    best = model.predict(seen, deterministic=True)[0]
    np.testing.assert_allclose(best, (low + high) / 2, atol=0.05 * (high - low))


def test_a_finite_bound_that_stands_for_none_leaves_the_units_alone() -> None:
    env = AnySpace(SEEN, spaces.Box(-3.4e38, 3.4e38, (1,)))
    model = GTrXLPPO("GTrXLPolicy", env, n_steps=8, policy_kwargs=POLICY, seed=0, device="cpu")
    actions, _ = model.predict(np.zeros((500, 3), np.float32))
    assert 0.8 < actions.std() < 1.2 and torch.isfinite(torch.as_tensor(actions)).all()
