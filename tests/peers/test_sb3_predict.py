"""What Stable-Baselines3 asks of ``predict``: its ``test_predict``, of every online agent."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.envs import IdentityEnv
from stable_baselines3.common.vec_env import VecEnv

from rltransformers.agents import GTrXLDQN
from tests.peers.small import AGENTS, STEPS, Kind, Still, actions_of, agent, every_agent, walk, walks


class Corner(spaces.Box):
    """A Box of a class that users made."""


@pytest.fixture(scope="module", params=AGENTS)
def model(request: pytest.FixtureRequest) -> Any:
    return agent(request.param)


def test_a_bare_environment_is_wrapped(model: Any) -> None:
    assert isinstance(model.get_env(), VecEnv) and model.n_envs == 1


@pytest.mark.parametrize("deterministic", [True, False])
def test_one_observation_gives_an_action_of_the_space_and_a_batch_one_for_each(model: Any, deterministic: bool) -> None:
    env, vec_env = walk(type(model)), walks(type(model), 3)
    observation, _ = env.reset(seed=0)
    action, _ = model.predict(observation, deterministic=deterministic)
    assert env.action_space.contains(action)
    assert (action.shape, action.dtype) == (env.action_space.shape, env.action_space.dtype)
    actions, _ = model.predict(vec_env.reset(), deterministic=deterministic)
    assert isinstance(actions, np.ndarray) and actions.shape == (3, *env.action_space.shape)  # type: ignore[misc]
    vec_env.step(actions)


@pytest.mark.filterwarnings("ignore:predict was called 50 times")  # each is the first step of an episode
@every_agent
def test_classes_are_predicted_on_and_explored_among(kind: Kind) -> None:
    model = agent(kind, IdentityEnv(3), policy={"epsilon": 1.0} if kind is GTrXLDQN else None)
    sampled = [model.predict(1, deterministic=False)[0] for _ in range(60)]
    assert {int(action) for action in sampled} == {0, 1, 2}
    assert model.predict(np.array([0, 2]), deterministic=False)[0].shape == (2,)


@every_agent
def test_a_space_of_a_class_of_ones_own_is_a_space(kind: Kind) -> None:
    corner = Corner(-1.0, 1.0, (2,), np.float32)
    env = Still(corner, actions_of(kind) if kind is GTrXLDQN else corner)
    check_env(env, skip_render_check=True)
    model = agent(kind, env).learn(STEPS)
    env.step(model.predict(env.reset(seed=0)[0])[0])


def test_what_gymnasiums_reset_returns_is_answered_with_what_to_pass(model: Any) -> None:
    with pytest.raises(ValueError, match="the observation is the first"):
        model.predict(gym.make("CartPole-v1").reset(seed=0))
