"""What Stable-Baselines3 asks of learning at its smallest: its ``test_identity``, of every online agent.

An action that equals the observation earns 1, at every step; nothing has to be remembered.
"""

from collections.abc import Callable
from typing import Any

import pytest
from stable_baselines3.common.envs import IdentityEnv, IdentityEnvBox, IdentityEnvMultiBinary, IdentityEnvMultiDiscrete
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv

from rltransformers.agents import GTrXLDQN, GTrXLPPO, GTrXLVMPO
from tests.peers.small import Kind, agent

LENGTH = 20
TASKS: dict[str, Callable[[], Any]] = {
    "Discrete": lambda: IdentityEnv(3, ep_length=LENGTH),
    "MultiDiscrete": lambda: IdentityEnvMultiDiscrete(2, ep_length=LENGTH),
    "MultiBinary": lambda: IdentityEnvMultiBinary(2, ep_length=LENGTH),
    "Box": lambda: IdentityEnvBox(eps=0.5, ep_length=LENGTH),
}
SETTINGS: dict[Kind, dict[str, Any]] = {
    GTrXLPPO: {"n_steps": 16, "n_epochs": 8},
    GTrXLVMPO: {
        "n_steps": 16,
        "n_epochs": 4,
        "batch_size": 32,
        "target_update_interval": 8,
        "eps_alpha": 0.1,
        "eps_mean": 0.1,
    },
    GTrXLDQN: {"exploration": 0.3, "learning_starts": 64, "batch_size": 32, "buffer_size": 4000},
}


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", SETTINGS)
def test_the_action_that_equals_the_observation_is_learned(kind: Kind, task: str) -> None:
    if kind is GTrXLDQN and task != "Discrete":
        pytest.skip("it learns actions that it can list")
    model = agent(kind, identities(task, 8), learning_rate=1e-2, gamma=0.4, **SETTINGS[kind]).learn(768)
    evaluate_policy(model, identities(task, 4), n_eval_episodes=4, reward_threshold=0.9 * LENGTH, warn=False)


def identities(task: str, count: int) -> DummyVecEnv:
    """Copies of a task, which draws its states from its spaces whatever seed a reset gives."""
    env = DummyVecEnv([TASKS[task]] * count)
    for index, each in enumerate(env.envs):
        each.observation_space.seed(index)
        each.action_space.seed(index)
    return env
