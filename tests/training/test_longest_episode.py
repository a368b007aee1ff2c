"""Episodes that never end stop evaluation and recording with an error instead of hanging them."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv

from rltransformers.agents import DecisionTransformer
from rltransformers.cli.collect import collect_episodes
from rltransformers.core.episodes import LONGEST_EPISODE, longest_allowed
from rltransformers.core.errors import ConfigError, DataError
from rltransformers.data import record
from rltransformers.envs import make_vec_env
from rltransformers.training.evaluation import evaluate_online
from rltransformers.training.runs.experiment import CollectConfig, EnvironmentConfig, build_experiment


class Endless(gym.Env[Any, Any]):
    """Episodes of ``length`` steps; 0: for ever."""

    observation_space = spaces.Box(-1.0, 1.0, (2,))
    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 0) -> None:
        self.length, self.t = length, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        assert self.t < 100, "the test would hang"
        return np.zeros(2, np.float32), 1.0, self.t == self.length, False, {}


gym.register("test/Endless-v0", entry_point=lambda **options: Endless(**options))


class Zeros:
    """Acts 0."""

    def predict(self, observation: Any, state: Any, episode_start: Any, deterministic: bool) -> tuple[Any, Any]:
        return np.zeros(len(episode_start), int), None


def model() -> DecisionTransformer:
    episodes = [{"observations": np.zeros((3, 2)), "actions": [0, 1], "rewards": [1.0, 1.0]}]
    backbone = {"width": 8, "heads": 2, "layers": 1}
    return DecisionTransformer("DTPolicy", episodes, context_length=3, policy_kwargs={"backbone": backbone}, seed=0)


def copies(lengths: tuple[int, ...]) -> list[Callable[[], Endless]]:
    return [lambda length=length: Endless(length) for length in lengths]  # type: ignore[misc]


def evaluated_online(lengths: tuple[int, ...], longest: int) -> Any:
    env = DummyVecEnv(copies(lengths))  # type: ignore[arg-type]
    return evaluate_online(Zeros(), env, "test/Endless-v0", len(lengths), longest_episode=longest).lengths


def evaluated_offline(lengths: tuple[int, ...], longest: int) -> Any:
    envs = SyncVectorEnv(copies(lengths), autoreset_mode=AutoresetMode.DISABLED)
    return model().evaluate(envs, 1.0, episodes=len(lengths), longest_episode=longest)[0].lengths


def recorded(env: Any, lengths: tuple[int, ...], longest: int) -> Any:
    return tuple(record(env, "random", episodes=2 * len(lengths), longest_episode=longest).lengths[::2])


WAYS: dict[str, Callable[[tuple[int, ...], int], Any]] = {
    "evaluate_online": evaluated_online,
    "evaluate": evaluated_offline,
    "record in DummyVecEnv": lambda lengths, longest: recorded(DummyVecEnv(copies(lengths)), lengths, longest),  # type: ignore[arg-type]
} | {
    f"record in {mode.value}": lambda lengths, longest, mode=mode: recorded(
        SyncVectorEnv(copies(lengths), autoreset_mode=mode), lengths, longest
    )
    for mode in AutoresetMode
}


@pytest.mark.parametrize("way", WAYS)
def test_an_episode_may_be_as_long_as_allowed_and_no_longer(way: str) -> None:
    assert WAYS[way]((7, 3, 9), 9) == (7, 3, 9)
    for lengths in ((7, 3, 10), (7, 3, 0)):
        with pytest.raises(DataError, match=r"environment 2.* has not ended after 9 steps; .*max_episode_steps"):
            WAYS[way](lengths, 9)


def test_ids_are_bounded_by_default_and_can_cut_their_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rltransformers.core.episodes.LONGEST_EPISODE", 20)
    zeros: Any = Zeros()
    for kwargs in ({}, {"max_episode_steps": 6}):
        ways: list[Callable[[], Any]] = [
            lambda kwargs=kwargs: model().evaluate("test/Endless-v0", 1.0, 2, env_kwargs=kwargs)[0].lengths,  # type: ignore[misc]
            lambda kwargs=kwargs: tuple(record("test/Endless-v0", "random", episodes=2, env_kwargs=kwargs).lengths),  # type: ignore[misc]
            lambda kwargs=kwargs: (
                evaluate_online(  # type: ignore[misc]
                    zeros, make_vec_env("test/Endless-v0", 2, env_kwargs=kwargs), "test/Endless-v0", 2
                ).lengths
            ),
            lambda kwargs=kwargs: tuple(  # type: ignore[misc]
                collect_episodes(EnvironmentConfig("test/Endless-v0", 2, kwargs), CollectConfig(2), 0).lengths
            ),
        ]
        for way in ways:
            if kwargs:
                assert way() == (6, 6)
            else:
                with pytest.raises(DataError, match=r"of test/Endless-v0 has not ended after 20 steps"):
                    way()


def test_steps_bound_a_recording_by_themselves() -> None:
    monkey = record("test/Endless-v0", "random", 30, longest_episode=None, env_kwargs={"length": 50})
    assert list(monkey.lengths) == [50]
    with pytest.raises(DataError, match="after 40 steps"):
        record("test/Endless-v0", "random", 30, longest_episode=40, env_kwargs={"length": 50})


def test_the_bound_is_the_one_given_or_the_larger_of_the_default_and_the_registered_limit() -> None:
    def registered(steps: int | None) -> Any:
        return gym.envs.registration.EnvSpec("a/B-v0", max_episode_steps=steps)

    assert longest_allowed(None, None) == longest_allowed(None, registered(500)) == LONGEST_EPISODE
    assert longest_allowed(None, registered(10**7)) == 10**7
    assert longest_allowed(3, registered(10**7)) == 3
    with pytest.raises(ConfigError, match="longest_episode must be a whole number of at least 1 or None"):
        longest_allowed(0, None)


def test_configs_reach_it() -> None:
    values: dict[str, Any] = {
        "agent": "decision_transformer",
        "environment": {"id": "test/Endless-v0"},
        "train": {"gradient_steps": 1},
        "dataset": {"collect": {"episodes": 2, "longest_episode": 11}},
        "evaluation": {"longest_episode": 12},
    }
    config = build_experiment(values)
    assert config.dataset is not None and config.dataset.collect is not None
    assert (config.dataset.collect.longest_episode, config.evaluation.longest_episode) == (11, 12)
    with pytest.raises(DataError, match="after 11 steps"):
        collect_episodes(config.environment, config.dataset.collect, 0)
    for key in ("evaluation", "dataset"):
        wrong = values | {
            key: {"longest_episode": 0} if key == "evaluation" else {"collect": {"episodes": 2, "longest_episode": 0}}
        }
        with pytest.raises(ConfigError, match=r"longest_episode must be a whole number of at least 1"):
            build_experiment(wrong)
