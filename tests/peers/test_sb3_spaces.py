"""What Stable-Baselines3 asks of spaces: its ``test_spaces``, of every online agent."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.evaluation import evaluate_policy

from rltransformers.agents import GTrXLDQN, GTrXLPPO, GTrXLVMPO
from rltransformers.core.errors import ConfigError
from tests.peers.small import STEPS, VECTOR, Kind, Still, actions_of, agent, every_agent

DOUBLE = spaces.Box(-1.0, 1.0, (2,), np.float64)
OBSERVATIONS: dict[str, gym.Space] = {
    "classes": spaces.MultiDiscrete([4, 3]),
    "bits in rows": spaces.MultiBinary((3, 2)),
    "doubles": DOUBLE,
    "together": spaces.Dict({"class": spaces.Discrete(5), "bits": spaces.MultiBinary(8), "a": VECTOR, "b": DOUBLE}),
}
ACTIONS: dict[str, gym.Space] = {
    "rows": spaces.Box(-1.0, 1.0, (2, 2), np.float32),
    "rows of doubles": spaces.Box(-1.0, 1.0, (2, 2), np.float64),
    "classes": spaces.MultiDiscrete([2, 3]),
    "bits": spaces.MultiBinary(3),
    "bits in rows": spaces.MultiBinary([2, 3]),  # which Stable-Baselines3 refuses
}


@pytest.mark.parametrize("name", OBSERVATIONS)
@every_agent
def test_observations_of_every_kind_are_learned_from(kind: Kind, name: str) -> None:
    env = Still(OBSERVATIONS[name], actions_of(kind), length=4)
    check_env(env, skip_render_check=True)
    model = agent(kind, env).learn(STEPS)
    assert np.isfinite(evaluate_policy(model, env, n_eval_episodes=1, warn=False)).all()


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("kind", [GTrXLPPO, GTrXLVMPO])
def test_actions_of_every_kind_have_shape_and_type_of_their_space(kind: Kind, name: str) -> None:
    env = Still(VECTOR, ACTIONS[name], length=4)  # which looks at every action
    model = agent(kind, env).learn(STEPS)
    action, _ = model.predict(env.reset(seed=0)[0], deterministic=False)
    assert ACTIONS[name].contains(action) and action.dtype == ACTIONS[name].dtype
    evaluate_policy(model, model.get_env(), n_eval_episodes=1, warn=False)


@pytest.mark.parametrize("name", ACTIONS)
def test_q_learning_refuses_actions_that_it_cannot_list(name: str) -> None:
    with pytest.raises(ConfigError, match="Q-learning needs a Discrete action space"):
        agent(GTrXLDQN, Still(VECTOR, ACTIONS[name]))
