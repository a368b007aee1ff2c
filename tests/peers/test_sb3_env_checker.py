"""The checker of Stable-Baselines3, and what agents do with what it objects to: its ``test_env_checker``."""

import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.env_checker import check_env

from rltransformers.agents import GTrXLPPO, GTrXLVMPO
from rltransformers.core.errors import ConfigError, DataError
from rltransformers.envs import TASKS
from tests.peers.small import STEPS, VECTOR, Kind, Still, actions_of, agent, every_agent

UNSUPPORTED: dict[str, gym.Space] = {
    "Sequence": spaces.Sequence(spaces.Discrete(8)),
    "'inside' is Graph": spaces.Dict({"inside": spaces.Graph(VECTOR, None)}),
    "'0' is Sequence": spaces.Tuple((spaces.Sequence(VECTOR),)),
    "OneOf": spaces.OneOf((spaces.Discrete(3), VECTOR)),
}
BOX = spaces.Box(-1.0, 2.0, (3,), np.float32)
WRONG: dict[str, tuple[gym.Space, Any]] = {
    r"shape \(2, 3\), the space \(3,\)": (BOX, np.ones((2, 3), np.float32)),
    r"'leaf'|has shape \(2, 3\)": (spaces.Dict({"leaf": BOX}), {"leaf": np.ones((2, 3), np.float32)}),
    r"array\(\[3, 0\]\), outside MultiDiscrete": (spaces.MultiDiscrete([3, 3]), np.array([3, 0])),
    r"is np.int64\(3\), outside Discrete\(3\)": (spaces.Discrete(3), 3),
}


class Faulty(Still):
    """Gives ``wrong`` as the observation of one call."""

    def __init__(self, space: Any, actions: Any, wrong: Any, at: str) -> None:
        super().__init__(space, actions)
        self.wrong, self.at = wrong, at

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed)
        return self.wrong if self.at == "reset" else observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, *rest = super().step(action)
        return (self.wrong if self.at == "step" and self.t == 2 else observation, *rest)


@pytest.mark.parametrize("task", sorted(TASKS))
def test_our_tasks_pass_the_checker_without_a_word(task: str) -> None:
    check_env(gym.make(f"rltransformers/{task.removeprefix('rltransformers/').removesuffix('-v0')}-v0").unwrapped)


@every_agent
def test_spaces_that_the_checker_warns_of_are_refused_before_training(kind: Kind) -> None:
    for words, space in UNSUPPORTED.items():
        with pytest.raises(ConfigError, match=f"{words}.*not supported"):
            agent(kind, Still(space, actions_of(kind)))


@pytest.mark.parametrize("at", ["reset", "step"])
@every_agent
def test_an_observation_outside_its_space_is_named_when_it_comes(kind: Kind, at: str) -> None:
    step = "0" if at == "reset" else "2"
    for words, (space, wrong) in WRONG.items():
        with pytest.raises(DataError) as error:
            agent(kind, Faulty(space, actions_of(kind), wrong, at)).learn(STEPS)
        for part in ("environment 0", rf"step {step}\b", *words.split("|")):
            assert re.search(part, str(error.value)), (part, str(error.value))


@every_agent
def test_numbers_of_another_type_or_beyond_the_bounds_are_learned_from(kind: Kind) -> None:
    """The checker asks for type and bounds; agents need neither, and real sensors keep to neither."""
    wrong = np.array([-1.5, 2.5, 0.0], np.float64)
    with pytest.raises(AssertionError, match="float32"):
        check_env(Faulty(BOX, actions_of(kind), wrong, "reset"))
    agent(kind, Faulty(BOX, actions_of(kind), wrong, "step")).learn(STEPS)


@every_agent
def test_episodes_of_one_step_are_learned_from(kind: Kind) -> None:
    env = Still(spaces.Discrete(2), actions_of(kind), length=1)
    check_env(env, skip_render_check=True)
    assert agent(kind, env).learn(STEPS).num_timesteps == STEPS


@pytest.mark.parametrize("kind", [GTrXLPPO, GTrXLVMPO])
def test_nested_actions_that_the_checker_warns_of_are_learned(kind: Kind) -> None:
    env = Still(VECTOR, spaces.Dict({"position": spaces.Discrete(2), "speed": VECTOR}))
    with pytest.warns(UserWarning, match="not based off a numpy"):
        check_env(env, skip_render_check=True)
    agent(kind, env).learn(STEPS)
