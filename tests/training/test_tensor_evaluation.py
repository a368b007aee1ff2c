"""Evaluation in environments of tensors: the episodes of numpy, without a copy per step."""

from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from rltransformers.agents import GTrXLPPO
from rltransformers.core.errors import DataError
from rltransformers.core.seeding import branch_seeds
from rltransformers.envs import GymnasiumVecEnv
from rltransformers.envs.tensors.tasks import CartPole, CueRecall, Pendulum
from rltransformers.envs.vector import with_statistics
from rltransformers.policies.action_heads import Noise
from rltransformers.training.evaluation import evaluate_online
from rltransformers.training.tensor_evaluation import noise_of_step
from tests.envs.tensors.twins import Stream, program
from tests.training.online.test_tensor_rollouts import AGENTS, counted_copies, tensors

POLICY = {"backbone": {"preset": "gtrxl", "width": 8, "layers": 1, "heads": 2, "memory": 4}}
CUES: dict[str, Any] = {"delay": 3, "cues": 3}


def ppo(env: Any, **policy: Any) -> Any:
    settings: dict[str, Any] = {"n_steps": 8, "policy_kwargs": POLICY | policy, "seed": 0, "device": "cpu"}
    return GTrXLPPO("GTrXLPolicy", env, **settings).learn(64)


def cues_in_numpy(seeds: list[int]) -> VecEnv:
    """CueRecall in numpy, whose environments draw from these seeds whatever they are given."""
    env: Any = program("CueRecall", len(seeds), 0, **CUES)
    env._generators = [Stream(seed) for seed in seeds]
    env._seeds = lambda _: [None] * len(seeds)
    return with_statistics(GymnasiumVecEnv(env))


@pytest.mark.parametrize("policy", [{}, {"previous_reward": True}])
def test_episodes_are_those_of_numpy(policy: dict[str, Any]) -> None:
    model = ppo(CueRecall(4, device="cpu", **CUES), **policy)
    seeds = branch_seeds(3, "evaluation", 5)
    ours = evaluate_online(model, CueRecall(5, device="cpu", **CUES), "", episodes=5, seed=3)
    theirs = evaluate_online(model, cues_in_numpy(seeds), "", episodes=5, seed=3)
    assert ours == theirs
    assert ours.successes is not None
    assert set(ours.lengths) == {5}


def test_normalized_observations_are_normalized() -> None:
    normalized: Any = VecNormalize(CartPole(4, device="cpu", max_episode_steps=20), norm_reward=False)
    model = ppo(normalized)
    normalized.training = False
    other: Any = VecNormalize(CartPole(3, device="cpu", max_episode_steps=20), norm_reward=False, training=False)
    other.obs_rms = normalized.obs_rms
    ours = evaluate_online(model, other, "", episodes=3, seed=1)
    actor, returns = model.actor(), []
    for seed in ours.seeds:  # by hand: the actor knows the statistics itself
        env: Any = CartPole(1, device="cpu", max_episode_steps=20)
        env.seed(seed)
        actor.reset()
        observation, total, done = env.reset(), 0.0, False
        while not done:
            action, _ = actor.predict(observation)
            observation, reward, dones, _ = env.step(action)
            total, done = total + float(reward[0]), bool(dones[0])
        returns.append(total)
    assert list(ours.returns) == returns
    assert np.isfinite(other.obs_rms.mean).all()


@pytest.mark.parametrize("name", ["PPO", "PPO, Box", "DQN", "SAC"])
def test_sampled_actions_follow_from_the_seed_of_the_episode(name: str) -> None:
    kind, settings, task = AGENTS[name]
    env: Any = {"CartPole-v1": CartPole, "Pendulum-v1": Pendulum}[task]
    model = kind(next(iter(kind.policy_aliases)), tensors(task), **settings)
    few, many = (
        evaluate_online(model, env(count, device="cpu", max_episode_steps=30), "", episodes=6, deterministic=False)
        for count in (2, 6)
    )
    np.testing.assert_allclose(few.returns, many.returns, rtol=1e-6)
    assert few.lengths == many.lengths
    other = evaluate_online(
        model, env(6, device="cpu", max_episode_steps=30), "", episodes=6, seed=1, deterministic=False
    )
    assert other.returns != many.returns


def test_noise_of_episodes_is_uniform_or_normal() -> None:
    streams = torch.arange(2000)
    drawn = torch.stack([noise_of_step([Noise(1, False), Noise(2, True)], streams, step) for step in range(5)])
    uniform, normal = drawn[..., 0], drawn[..., 1:]
    assert bool(((uniform >= 0) & (uniform < 1)).all())
    assert abs(float(uniform.mean()) - 0.5) < 0.01
    assert abs(float(normal.mean())) < 0.02
    assert abs(float(normal.std()) - 1.0) < 0.02
    pairs = torch.corrcoef(drawn.permute(2, 0, 1).flatten(1))
    assert bool((pairs - torch.eye(3)).abs().max() < 0.05)


def test_copies_do_not_grow_with_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ppo(CueRecall(4, device="cpu", delay=3))
    counts = []
    for delay in (3, 28):
        with counted_copies(monkeypatch) as copies:
            evaluate_online(model, CueRecall(4, device="cpu", delay=delay), "", episodes=4)
        counts.append(copies.count)
    assert counts[0] == counts[1] < 15


class Unseen(CartPole):
    """Shows nothing but NaN from some step on; its rewards are as ever."""

    def follow(self, state: Any, actions: torch.Tensor) -> Any:
        after = super().follow(state, actions)
        return (after[0] | {"body": torch.where(after[0]["t"] > 2, torch.nan, 0.0)[:, None].expand(-1, 4)}, *after[1:])


@pytest.mark.parametrize("limit", [3, 40])
def test_observations_are_looked_at(limit: int) -> None:
    model = ppo(CartPole(2, device="cpu"))
    what = "terminal observation" if limit == 3 else "observation"
    with pytest.raises(
        DataError, match=f"^{what} of environment 0 in step 3 is nan at entry .0., not finite; look for"
    ):
        evaluate_online(model, Unseen(2, device="cpu", max_episode_steps=limit), "", episodes=2)


@pytest.mark.parametrize("task", [CartPole, Pendulum])
def test_a_network_that_is_not_finite_is_to_blame(task: Any) -> None:
    model = ppo(task(2, device="cpu"))
    with torch.no_grad():
        model.policy.action_head.linear.weight.fill_(torch.nan)
    with pytest.raises(DataError, match="log-probabilities are not finite; look whether its weights"):
        evaluate_online(model, task(2, device="cpu"), "", episodes=2)


def test_an_episode_without_end_is_an_error() -> None:
    model = ppo(CueRecall(4, device="cpu", delay=3))
    with pytest.raises(DataError, match=r"an episode of environment 0 .*has not ended after 40 steps"):
        evaluate_online(model, CueRecall(4, device="cpu", delay=10**6), "CartPole-v1", episodes=4, longest_episode=40)
    with pytest.raises(DataError, match=r"an episode of environment 0 .*has not ended after 5 steps"):
        evaluate_online(model, CueRecall(2, device="cpu", delay=18), "CartPole-v1", episodes=2, longest_episode=5)
