"""The laws of V-MPO with memory: who acts, whose memory is whose, what advantages are, what bounds the policy."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium import spaces
from gymnasium.wrappers import TransformReward
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from torch import Tensor

from rltransformers.agents import GTrXLVMPO
from rltransformers.backbone import PRESETS
from rltransformers.core.errors import ConfigError
from rltransformers.policies.policy_state import PolicyState
from tests.agents.rollouts import ACTING, StopsAt, loud, rollout
from tests.agents.test_gtrxl_ppo_laws import SIZES
from tests.agents.tiny_envs import AnySpace, Steady, Walk
from tests.attention.rows import small_windows
from tests.choice import ALL_CASES

TINY = {"preset": "gtrxl", "width": 16, "layers": 2, "heads": 2, "memory": 4}
NESTED = spaces.Dict(
    {"arm": spaces.Box(-2.0, 2.0, (3,)), "grip": spaces.MultiDiscrete([2, 4]), "lamps": spaces.MultiBinary(2)}
)
SPACES: dict[str, Any] = {
    "discrete": spaces.Discrete(3),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "multi-binary": spaces.MultiBinary(2),
    "box": spaces.Box(-9.0, 9.0, (2,)),
    "nested": NESTED,
}


def walks(length: int = 60) -> VecEnv:
    return DummyVecEnv([partial(Walk, (length,)), partial(Walk, (length, 5), True), partial(Walk, (length,))])


def agent(env: Any = None, backbone: Any = None, policy: Any = None, **settings: Any) -> GTrXLVMPO:
    values: dict[str, Any] = {"n_steps": 12, "batch_size": 12, "seed": 0, "device": "cpu", "n_epochs": 2}
    values |= {"learning_rate": 3e-3} | settings
    kwargs = {"backbone": TINY | (backbone or {})} | (policy or {})
    model = GTrXLVMPO("GTrXLPolicy", walks() if env is None else env, policy_kwargs=kwargs, **values)
    loud(model)
    return model


def weights(policy: Any) -> Tensor:
    return torch.nn.utils.parameters_to_vector(policy.parameters()).detach().clone()


def memories(state: PolicyState) -> dict[str, Tensor]:
    return {name: value for name, value in state.actor.tensors.items() if value.is_floating_point()}


def assert_same(one: PolicyState, other: PolicyState, atol: float) -> None:
    found, expected = memories(one), memories(other)
    assert found.keys() == expected.keys() and found
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], atol=atol, rtol=0)


# Who acts ----------------------------------------------------------------------------------------------------


def test_the_target_acts_and_follows_the_learner_when_its_time_has_come() -> None:
    """Six gradient steps an update: the copies are made after the second, the fourth and the sixth."""
    model = agent(target_update_interval=7)
    start, ages = weights(model.target), []
    assert torch.equal(start, weights(model.policy))
    for update in range(1, 7):
        before = weights(model.target)
        rollout(model)
        assert torch.equal(before, weights(model.target))
        model.train()
        ages.append(model.carry.target_age)
        assert torch.equal(weights(model.target), weights(model.policy) if update % 2 == 0 else before)
    assert ages == [6, 0] * 3
    assert not any(parameter.requires_grad for parameter in model.target.parameters())


def test_what_is_recorded_is_of_the_target_and_what_is_predicted_of_the_learner() -> None:
    model = agent(target_update_interval=10**6)
    rollout(model)
    model.train()
    segment = rollout(model)
    with torch.no_grad():
        acted, learned = (policy.evaluate_segment(segment) for policy in (model.target, model.policy))
    torch.testing.assert_close(acted.log_probs, segment.log_probs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(acted.values, segment.values, atol=1e-5, rtol=1e-5)
    assert float((learned.log_probs - segment.log_probs).abs().max()) > 1e-2
    observation = segment.observations[""][:, 0].numpy()
    assert (
        model.predict(observation, deterministic=True)[0] == model.policy.predict(observation, deterministic=True)[0]
    ).all()


@pytest.mark.parametrize("preset", sorted(PRESETS) if ALL_CASES else ACTING)
def test_a_copied_target_computes_what_the_learner_computes_on_presets(preset: str) -> None:
    """Also what mixers learn between updates, and tables that depend on weights."""
    model = agent(backbone={"preset": preset, **SIZES.get(preset, small_windows(preset))}, target_update_interval=1)
    for _ in range(2):
        rollout(model)
        model.train()
    segment = rollout(model)
    with torch.no_grad():
        learned = model.policy.eval().evaluate_segment(segment)
    # the bound of the design for rollout and update
    torch.testing.assert_close(learned.log_probs, segment.log_probs, atol=1e-5, rtol=1e-5)


# Whose memory ------------------------------------------------------------------------------------------------


def test_the_learner_begins_a_segment_with_the_memory_that_its_own_weights_made() -> None:
    model = agent(memory_refresh="update", target_update_interval=10**6)
    first = rollout(model)
    model.train()
    with torch.no_grad():
        expected = model.policy.memory_after(first)
    second = rollout(model)
    assert model.carry.own_memory is not None
    assert_same(model.carry.own_memory, expected, atol=1e-6)
    distance = max(
        float((value - memories(second.memory)[name]).abs().max()) for name, value in memories(expected).items()
    )
    assert distance > 1e-3  # the target's own memory is another one


def test_a_target_that_stays_keeps_its_memory() -> None:
    model = agent(memory_refresh="update", target_update_interval=10**6)
    rollout(model)
    before = model.carry.acting
    model.train()
    assert model.carry.acting is before


def test_a_target_of_tau_is_an_average_that_goes_on_with_its_own_memory() -> None:
    model = agent(target_update_interval=1, tau=0.25)
    for _ in range(2):  # the second one begins apart from the learner
        rollout(model)
        before, memory = weights(model.target), model.target.without_cache(model.carry.acting)
        model.train()
        torch.testing.assert_close(weights(model.target), 0.75 * before + 0.25 * weights(model.policy))
        assert not torch.equal(weights(model.target), weights(model.policy)) and model.carry.target_age == 0
        assert_same(model.target.without_cache(model.carry.acting), memory, atol=0.0)
    segment = rollout(model)
    with torch.no_grad():  # acting has used keys and values of the new weights
        found = model.target.evaluate_segment(segment)
    torch.testing.assert_close(found.log_probs, segment.log_probs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("memory_refresh", ["update", "epoch"])
def test_a_new_target_goes_on_with_the_memory_of_the_weights_it_takes_over(memory_refresh: str) -> None:
    model = agent(memory_refresh=memory_refresh, target_update_interval=1)
    segment = rollout(model)
    model.train()
    with torch.no_grad():
        expected = model.policy.memory_after(segment)
    assert_same(model.target.without_cache(model.carry.acting), expected, atol=1e-6)
    second = rollout(model)
    with torch.no_grad():  # keys and values in its cache are those of the new weights too
        found = model.policy.evaluate_segment(second).values
    torch.testing.assert_close(found, second.values, atol=1e-5, rtol=1e-5)


def test_after_a_stop_inside_a_rollout_the_learner_begins_with_the_memory_of_acting(tmp_path: Path) -> None:
    """Its own lacks the steps of the rollout that was given up; a checkpoint from there does not hold it either."""
    model = agent(target_update_interval=10**6)
    model.learn(36)
    assert model.carry.own_memory is not None
    model.learn(36, callback=StopsAt(36 + 15), reset_num_timesteps=False)
    assert model.num_timesteps == 51 and model.carry.own_memory is None
    model.save(tmp_path / "model")
    loaded = GTrXLVMPO.load(tmp_path / "model", env=model.get_env(), device="cpu", force_reset=False)
    assert loaded.carry.own_memory is None
    segment = rollout(model)
    assert model.carry.own_memory is None
    assert segment.rewards.shape == (3, 12)
    model.train()


# What is learned from ----------------------------------------------------------------------------------------


def test_advantages_are_raw_returns_of_the_segment_minus_the_values_of_the_learner() -> None:
    model = agent(gamma=0.8, target_update_interval=10**6)
    rollout(model)
    model.train()
    segment = rollout(model)
    buffer: Any = model.rollout_buffer
    with torch.no_grad():
        leaves = model.target.leaves_to_tensors({"": model._last_obs})
        goes_on = torch.as_tensor(model._last_episode_starts)
        after = model.target.values(leaves, model.carry.acting, goes_on)
    returns = torch.zeros(3, 12)
    for row in range(3):
        total = float(after[row])
        for t in reversed(range(12)):
            if buffer.episode_ends[row, t]:
                total = float(buffer.last_values[row, t])  # 0 where it ended for good
            total = float(segment.rewards[row, t]) + 0.8 * total
            returns[row, t] = total
    learner = model.policy.evaluate_segment(replace(segment, memory=model.carry.own_memory))
    model.train()
    found = model.carry.segment
    assert found is not None
    # float32 sums of twelve rewards of the order of 10
    torch.testing.assert_close(segment.returns, returns, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(found.advantages, returns - learner.values.detach(), atol=1e-4, rtol=1e-5)


def test_a_minibatch_holds_256_steps_and_more_where_there_are_as_many() -> None:
    def rows(n_envs: int, n_steps: int, batch_size: int | None = None) -> int:
        env = DummyVecEnv([Walk] * n_envs)
        return agent(env, n_steps=n_steps, batch_size=batch_size)._rows_per_batch()

    assert rows(16, 64) == 4 and rows(16, 100) == 4 and rows(16, 20) == 13
    assert rows(3, 12) == 3  # all there is
    assert rows(16, 20, 40) == 2  # as asked


# Bounds ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPACES)
def test_every_action_space_has_its_divergences_and_their_bounds(name: str) -> None:
    env = DummyVecEnv([partial(AnySpace, spaces.Box(-1.0, 1.0, (3,)), SPACES[name])] * 3)
    model = agent(
        env, eps_alpha=0.1, eps_mean=0.2, eps_covariance=0.3, learning_rate=1e-2, target_update_interval=10**6
    )
    model.learn(72)
    kinds = {"box": ["mean", "covariance"], "nested": ["classes", "mean", "covariance"]}.get(name, ["classes"])
    logged = model.logger.name_to_value
    for kind, bound in (("classes", 0.1), ("mean", 0.2), ("covariance", 0.3)):
        assert (f"train/kl_{kind}" in logged) == (kind in kinds)
        if kind in kinds:
            assert logged[f"train/kl_bound_{kind}"] == bound
            assert logged[f"train/kl_{kind}"] > 0.0
            assert logged[f"train/alpha_{kind}"] != 1.0
    assert logged["train/kl"] == pytest.approx(sum(logged[f"train/kl_{kind}"] for kind in kinds), rel=1e-5)


@pytest.mark.slow
def test_the_penalty_holds_the_divergence_at_its_bound() -> None:
    """Ten times above it with a penalty that cannot rise; multipliers with the rate of the network would not."""
    found = {}
    for rate in (0.0, 0.1):
        env = DummyVecEnv([partial(AnySpace, spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(3))] * 8)
        model = agent(env, n_steps=32, batch_size=256, eps_alpha=1e-3, alpha_init=1e-3, n_epochs=16, learning_rate=1e-2,
                      multiplier_learning_rate=rate, target_update_interval=16)  # fmt: skip
        model.learn(256 * 12)
        found[rate] = model.logger.name_to_value["train/kl_classes"]
    assert found[0.0] > 1e-2 and found[0.1] < 3e-3


def test_multipliers_have_an_optimizer_of_their_own() -> None:
    model = agent(learning_rate=0.0, multiplier_learning_rate=0.05, n_epochs=1, batch_size=36)
    before = weights(model.policy)
    model.learn(36)
    assert torch.equal(before, weights(model.policy))
    # One step of Adam is its rate, on the logarithm; with no divergence the penalty falls.
    assert float(model.multipliers.temperature.detach()) == pytest.approx(
        torch.tensor(0.05).exp().item(), rel=1e-4
    ) or (float(model.multipliers.temperature.detach()) == pytest.approx(torch.tensor(-0.05).exp().item(), rel=1e-4))
    for penalty in model.multipliers.penalties.values():
        assert float(penalty.detach()) == pytest.approx(torch.tensor(-0.05).exp().item(), rel=1e-4)
    learned = {id(parameter) for parameter in model.policy.optimizer.param_groups[0]["params"]}
    assert not learned & {id(parameter) for parameter in model.multipliers.parameters()}


def test_a_new_rate_of_the_multipliers_counts_for_a_loaded_run(tmp_path: Path) -> None:
    agent(multiplier_learning_rate=0.5).learn(36).save(tmp_path / "model")
    loaded = GTrXLVMPO.load(tmp_path / "model", env=walks(), device="cpu", multiplier_learning_rate=0.0)
    before = float(loaded.multipliers.temperature.detach())
    assert before != 1.0
    loaded.learn(36, reset_num_timesteps=False)
    assert float(loaded.multipliers.temperature.detach()) == before


def test_settings_that_cannot_bound_anything_are_refused() -> None:
    for name in (
        "tau",
        "eps_eta",
        "eps_alpha",
        "eps_mean",
        "eps_covariance",
        "eta_init",
        "alpha_init",
        "target_update_interval",
    ):
        wrong: dict[str, Any] = {name: 0}
        with pytest.raises(ConfigError, match=name):
            agent(**wrong)


def test_values_of_an_averaged_target_lie_between_its_own_and_the_learners() -> None:
    """In whatever units either has them: returns are far from 0, and the learner's units move with every minibatch."""
    env = DummyVecEnv([lambda: TransformReward(Steady(500), lambda reward: 100.0 * float(reward))] * 3)
    model = agent(env, target_update_interval=1, tau=0.3, popart=0.1, gamma=0.9)
    for _ in range(4):
        segment = rollout(model)
        before = mean_value(model.target, segment)
        model.train()
        assert before < mean_value(model.target, segment) < mean_value(model.policy, segment)


@torch.no_grad()
def mean_value(policy: Any, segment: Any) -> float:
    return float(policy.evaluate_segment(segment).values.mean())


def test_a_memory_of_other_episodes_is_not_taken_for_the_present_one() -> None:
    """A run that begins anew and stops where the last one ended has as many steps behind it."""
    model = agent(DummyVecEnv([partial(Walk, (60,))] * 3))
    model.learn(36)
    assert model.carry.own_memory is not None
    model.learn(72, callback=StopsAt(36))
    assert model.num_timesteps == 36 and model.carry.own_memory is None
