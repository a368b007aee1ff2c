"""The default scale of rewards: that of ``VecNormalize``, inside the agent, never twice, and a part of its files."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecMonitor, VecNormalize

from rltransformers.agents import GTrXLDQN, GTrXLPPO, GTrXLSAC, GTrXLVMPO
from rltransformers.core.checkpoint import load_checkpoint, save_checkpoint
from rltransformers.core.errors import CheckpointError, ConfigError
from rltransformers.training.online.online_agent import OnlineAgent
from tests.agents.tiny_envs import Stroll

KINDS: list[type[OnlineAgent]] = [GTrXLPPO, GTrXLVMPO, GTrXLDQN, GTrXLSAC]
STEPS = 2 * 24
GAMMA = 0.9
Statistics = tuple[float, float, float]


def strolls(count: int = 2) -> VecEnv:
    """Dense rewards, episodes that end and ones that a limit cuts."""
    makers = [partial(Stroll, (5, 30)), partial(Stroll, (7,), True)]
    env = VecMonitor(DummyVecEnv([makers[place % 2] for place in range(count)]))
    env.seed(0)
    return env


def agent(kind: type[Any], env: VecEnv, reads: bool = False, **settings: Any) -> Any:
    policy = {"backbone": {"width": 8, "layers": 1, "heads": 2, "memory": 4}, "previous_reward": reads}
    sizes: dict[str, Any] = {"n_steps": 12, "batch_size": 24}
    if kind is GTrXLDQN:
        sizes = {"learning_starts": 10, "segment_length": 4, "target_update_interval": 3}
    if kind is GTrXLSAC:
        sizes = {"learning_starts": 10, "segment_length": 4}
    chosen = sizes | {"gamma": GAMMA, "learning_rate": 1e-2, "seed": 0, "device": "cpu"} | settings
    return kind(*kind.policy_aliases, env, policy_kwargs=policy, **chosen)


def weights(model: Any) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(model.policy.parameters()).detach()


def statistics(model: Any) -> Statistics:
    moments = model._scale.moments
    return float(moments.mean), float(moments.var), float(moments.count)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reads", [False, True])
def test_an_agent_learns_what_it_learns_where_vec_normalize_scales_rewards(kind: type[Any], reads: bool) -> None:
    """To the digit; in a ``VecNormalize`` of observations alone too, and in one of rewards nothing is scaled twice."""
    own = agent(kind, strolls(), reads).learn(STEPS)
    wrapped = VecNormalize(strolls(), norm_obs=False, gamma=GAMMA)
    for scale_rewards in (True, False):
        other = agent(kind, wrapped, reads, scale_rewards=scale_rewards).learn(STEPS)
        assert torch.equal(weights(other), weights(own))
        wrapped = VecNormalize(strolls(), norm_obs=False, gamma=GAMMA)
    beside = VecNormalize(strolls(), norm_obs=False, norm_reward=False)
    assert torch.equal(weights(agent(kind, beside, reads).learn(STEPS)), weights(own))
    raw = agent(kind, strolls(), reads, scale_rewards=False).learn(STEPS)
    assert not torch.equal(weights(raw), weights(own))
    returns = [float(each["r"]) for each in own.ep_info_buffer]
    assert returns and all(each == round(each) for each in returns)  # those of the environment
    assert own.logger.name_to_value["train/reward_scale"] == pytest.approx(np.sqrt(statistics(own)[1]), rel=0.2)


@pytest.mark.parametrize("kind", KINDS)
def test_other_environments_go_on_with_the_statistics_and_begin_new_sums(kind: type[Any], tmp_path: Path) -> None:
    model = agent(kind, strolls()).learn(STEPS)
    model.save(tmp_path / "model")
    same = kind.load(tmp_path / "model", env=strolls())
    np.testing.assert_array_equal(same._scale.returns, model._scale.returns)
    assert np.abs(model._scale.returns).max() > 0
    if kind in (GTrXLDQN, GTrXLSAC):
        with pytest.warns(UserWarning, match="the replay of the checkpoint is left out"):
            other = kind.load(tmp_path / "model", env=strolls(3))
    else:
        other = kind.load(tmp_path / "model", env=strolls(3))
    assert statistics(other) == statistics(same) == statistics(model)
    assert not other._scale.returns.any()
    assert kind.load(tmp_path / "model")._own_scale is not None  # without environment, for an actor
    assert kind.load(tmp_path / "model", env=strolls(), scale_rewards=False).learn(STEPS)._own_scale is None


def test_sums_begin_with_episodes_however_these_begin() -> None:
    model = agent(GTrXLPPO, strolls(), scale_rewards=True).learn(STEPS)
    before = statistics(model)
    model.begin_episodes(3)
    seen: list[np.ndarray] = []
    update = model._scale.update

    def listening(rewards: np.ndarray, *rest: Any) -> np.ndarray:
        seen.append(rewards)
        return np.asarray(update(rewards, *rest))

    model._scale.update = listening
    model.learn(24, reset_num_timesteps=False)
    assert statistics(model)[2] == before[2] + 24
    first = 0.0  # the 7 steps of the second environment since its last episode began, which was with step 8 of 12
    for rewards in seen[7:]:
        first = first * GAMMA + rewards[1]
    assert model._scale.returns[1] == pytest.approx(first)


def test_a_file_that_lacks_its_scale_is_refused(tmp_path: Path) -> None:
    agent(GTrXLPPO, strolls()).learn(STEPS).save(tmp_path / "model")
    stored = load_checkpoint(tmp_path / "model")
    tensors = {n: value for n, value in stored.tensors.items() if n not in ("reward_scale", "running_returns")}
    save_checkpoint(tmp_path / "damaged", stored.kind, stored.settings, tensors)
    with pytest.raises(CheckpointError, match="rewards are scaled and holds no scale"):
        GTrXLPPO.load(tmp_path / "damaged")
    settings = {name: value for name, value in stored.settings.items() if name != "scale_rewards"}
    save_checkpoint(tmp_path / "old", stored.kind, settings, tensors)
    with pytest.raises(CheckpointError, match="lacks 'scale_rewards'"):
        GTrXLPPO.load(tmp_path / "old")


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "the environment scales": (VecNormalize, {}, r"trained without VecNormalize, .*norm_reward=True"),
    "nobody scales": (lambda env: env, {"scale_rewards": False}, "was trained with scale_rewards=True; leave it out"),
}


@pytest.mark.parametrize(("wrap", "settings", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_policy_that_reads_rewards_keeps_the_scale_that_it_learned_with(
    wrap: Any, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    agent(GTrXLPPO, strolls()).save(tmp_path / "blind")
    GTrXLPPO.load(tmp_path / "blind", env=wrap(strolls()), **settings)
    agent(GTrXLPPO, strolls(), reads=True).save(tmp_path / "model")
    with pytest.raises(ConfigError, match=message):
        GTrXLPPO.load(tmp_path / "model", env=wrap(strolls()), **settings)


def test_predict_takes_rewards_as_the_environment_gives_them() -> None:
    model = agent(GTrXLPPO, strolls(), reads=True).learn(STEPS)
    observation = np.zeros((2, 3), np.float32)
    _, state = model.predict(observation)
    _, raw = model.predict(observation, state, reward=np.array([1.0, -2.0]))
    _, scaled = model.policy.predict(observation, state, reward=model._scale(np.array([1.0, -2.0])))
    assert torch.equal(raw.previous_reward, scaled.previous_reward)
    assert not torch.equal(raw.previous_reward, torch.tensor([1.0, -2.0]))
    for wrong in ([1.0, np.inf], [1.0, 1e39], ["a", "b"], [1.0, 2.0, 3.0]):
        with pytest.raises(Exception, match="reward"):
            model.predict(observation, state, reward=wrong)
