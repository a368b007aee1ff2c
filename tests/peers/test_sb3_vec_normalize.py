"""What Stable-Baselines3 asks of agents in a ``VecNormalize``: the part of its ``test_vec_normalize`` they have."""

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecNormalize

from rltransformers.core.errors import ConfigError
from tests.peers.small import STEPS, VECTOR, WITH_REPLAY, Kind, Still, actions_of, agent, every_agent, walks

MIXED = spaces.Dict({"seen": spaces.Box(-20.0, 20.0, (4,)), "class": spaces.Discrete(3), "kept": VECTOR})


def still(kind: Kind, space: gym.Space[Any]) -> VecEnv:
    return DummyVecEnv([partial(Still, space, actions_of(kind))])


@every_agent
def test_the_normalization_of_the_newest_environment_counts_and_moves_in_training_alone(kind: Kind) -> None:
    training = VecNormalize(walks(kind), clip_obs=0.5, clip_reward=0.5)
    fixed = VecNormalize(walks(kind), training=False, norm_reward=False)
    model = agent(kind, training)
    assert model.get_vec_normalize_env() is training
    model.set_env(fixed)
    assert model.get_vec_normalize_env() is fixed
    before = fixed.obs_rms.mean.copy()
    model.learn(STEPS)
    np.testing.assert_array_equal(fixed.obs_rms.mean, before)
    model.set_env(training)
    model.learn(2 * STEPS)
    assert model.get_vec_normalize_env() is training and np.abs(model._last_obs).max() <= 0.5
    assert training.obs_rms.count > 2 * STEPS


@every_agent
def test_chosen_keys_are_normalized_and_chosen_again_after_loading(kind: Kind, tmp_path: Path) -> None:
    model = agent(kind, VecNormalize(still(kind, MIXED), norm_obs_keys=["seen"])).learn(STEPS)
    raw = model.env.get_original_obs()
    np.testing.assert_array_equal(model._last_obs["kept"], raw["kept"])
    assert not np.array_equal(model._last_obs["seen"], raw["seen"])
    model.save(tmp_path / "agent")
    loaded = kind.load(tmp_path / "agent", env=still(kind, MIXED))
    assert loaded.get_vec_normalize_env().norm_obs_keys == ["seen"]
    np.testing.assert_array_equal(loaded.env.obs_rms["seen"].mean, model.env.obs_rms["seen"].mean)
    loaded.learn(STEPS)


@every_agent
def test_classes_are_learned_from_where_rewards_alone_are_normalized(kind: Kind) -> None:
    env = VecNormalize(still(kind, spaces.Discrete(5)), norm_obs=False)
    assert agent(kind, env).learn(STEPS).get_vec_normalize_env() is env


@every_agent
def test_an_evaluation_takes_over_the_statistics_and_refuses_an_environment_without(kind: Kind) -> None:
    training = VecNormalize(walks(kind, 1))
    evaluated = VecNormalize(walks(kind, 1), training=False, norm_reward=False)
    callback = EvalCallback(evaluated, n_eval_episodes=1, eval_freq=STEPS, verbose=0, warn=False)
    model = agent(kind, training).learn(STEPS, callback=callback)
    raw: Any = np.linspace(-2.0, 2.0, 3)[None]
    theirs: Any = training.normalize_obs(raw)
    np.testing.assert_allclose(np.asarray(evaluated.normalize_obs(raw)), theirs)
    wrong = EvalCallback(walks(kind, 1), n_eval_episodes=1, eval_freq=STEPS, verbose=0, warn=False)
    with (
        pytest.warns(UserWarning, match="same type"),
        pytest.raises(ConfigError, match="evaluates in DummyVecEnv, training runs in VecNormalize"),
    ):
        model.learn(STEPS, callback=wrong)


@every_agent
def test_a_stack_of_normalized_frames_is_learned_from_and_kept(kind: Kind, tmp_path: Path) -> None:
    def stacked() -> VecEnv:
        return VecFrameStack(VecNormalize(walks(kind)), 2)

    if kind in WITH_REPLAY:  # its replay holds raw observations and normalizes them later
        with pytest.raises(ConfigError, match="make VecNormalize the outer wrapper"):
            agent(kind, stacked())
        return
    model = agent(kind, stacked()).learn(2 * STEPS)
    model.save(tmp_path / "agent")
    bare, loaded = kind.load(tmp_path / "agent"), kind.load(tmp_path / "agent", env=stacked())
    actions = [each.predict(model._last_obs, deterministic=True)[0] for each in (model, bare, loaded)]
    np.testing.assert_array_equal(actions[0], actions[1])
    np.testing.assert_array_equal(actions[0], actions[2])
    np.testing.assert_array_equal(
        loaded.get_vec_normalize_env().obs_rms.mean, model.get_vec_normalize_env().obs_rms.mean
    )
    for each in (model, bare):
        with pytest.raises(ConfigError, match="VecFrameStack stands between VecNormalize and the policy"):
            each.actor()
