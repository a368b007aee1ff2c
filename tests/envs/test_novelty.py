"""A bonus for what an episode has not shown yet: paid once per observation and episode, to training alone."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from stable_baselines3.common.vec_env import VecEnv

from rltransformers.agents import GTrXLPPO
from rltransformers.core.errors import ConfigError
from rltransformers.core.guard import reset_rows
from rltransformers.envs import GymnasiumVecEnv, NoveltyBonus, make_vec_env
from rltransformers.envs.saving import environment_state, restore_environment, takes_state

BONUS = 0.25


class Walk(gymnasium.Env[Any, Any]):
    """Five cells in a row, of which the last ends an episode and pays 1; ``kind`` is how a cell is observed."""

    def __init__(self, kind: str = "number") -> None:
        cell = spaces.Discrete(5)
        nested = spaces.Dict({"b": cell, "a": spaces.Box(0, 9, (2,), np.float32)})
        self.observation_space = nested if kind == "nested" else cell
        self.action_space = spaces.Discrete(2)
        self.nested, self.cell = kind == "nested", 0

    def observation(self) -> Any:
        return {"a": np.full(2, self.cell), "b": self.cell} if self.nested else self.cell

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(**options)
        self.cell = 0
        return self.observation(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.cell = max(self.cell + (1 if action else -1), 0)
        return self.observation(), float(self.cell == 4), self.cell == 4, False, {}


def rewards(env: VecEnv, actions: list[int]) -> list[float]:
    return [float(env.step(np.array([action] * env.num_envs))[1][0]) for action in actions]


@pytest.mark.parametrize("kind", ["number", "nested"])
def test_an_observation_pays_once_in_an_episode(kind: str) -> None:
    env = NoveltyBonus(make_vec_env(Walk, 2, env_kwargs={"kind": kind}), BONUS)
    env.reset()
    # Cells 0, 1, 0, 1, 2, 3, 4: the first cell is known from the reset, the last ends the episode.
    assert rewards(env, [0, 1, 0, 1, 1, 1, 1]) == [0, BONUS, 0, 0, BONUS, BONUS, 1 + BONUS]
    assert rewards(env, [0, 1, 1]) == [0, BONUS, BONUS]  # a new episode; its first cell came with the end of the last
    env.reset()
    assert rewards(env, [0, 1]) == [0, BONUS]


def test_a_row_in_which_an_environment_is_only_reset_pays_nothing() -> None:
    env = NoveltyBonus(GymnasiumVecEnv(RecordEpisodeStatistics(SyncVectorEnv([Walk]))), BONUS)
    env.reset()
    episode = [BONUS, BONUS, BONUS, 1 + BONUS]
    assert rewards(env, [1] * 4) == episode
    assert reset_rows(env).tolist() == [False]
    assert rewards(env, [1]) == [0]
    assert reset_rows(env).tolist() == [True]
    assert rewards(env, [1] * 4) == episode  # the last cell is new to this one, too


class Signs(gymnasium.Env[Any, Any]):
    """A zero, a negative zero, a one, and so on."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(**options)
        self.numbers = iter([-0.0, 1.0, 0.0])
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.full(2, next(self.numbers), np.float32), 0.0, False, False, {}


def test_a_negative_zero_is_a_zero() -> None:
    env = NoveltyBonus(make_vec_env(Signs), BONUS)
    env.reset()
    assert rewards(env, [0] * 3) == [0, BONUS, 0]


def test_statistics_of_episodes_leave_it_out() -> None:
    env = NoveltyBonus(make_vec_env(Walk), BONUS)
    env.reset()
    infos = [env.step(np.array([1]))[3][0] for _ in range(4)]
    assert infos[-1]["episode"]["r"] == 1


def test_environments_count_apart() -> None:
    env = NoveltyBonus(make_vec_env(Walk, 2), BONUS)
    env.reset()
    assert env.step(np.array([1, 0]))[1].tolist() == [BONUS, 0]
    assert env.step(np.array([0, 1]))[1].tolist() == [0, BONUS]


def test_it_falls_to_nothing() -> None:
    env = NoveltyBonus(make_vec_env(Walk), BONUS, steps=4)
    env.reset()
    assert rewards(env, [1, 1, 1, 1, 1, 1]) == [BONUS, BONUS * 3 / 4, BONUS / 2, 1 + BONUS / 4, 0, 0]


def test_what_an_episode_has_seen_goes_on_from_a_state() -> None:
    first, second = (NoveltyBonus(make_vec_env("rltransformers/CueRecall-v0", 3, seed=0), BONUS, 50) for _ in range(2))
    first.reset()
    for _ in range(5):
        first.step(np.zeros(3, int))
    state = environment_state(first)
    assert state is not None
    assert takes_state(second, state)
    restore_environment(second, state)
    for _ in range(40):
        assert first.step(np.zeros(3, int))[1].tolist() == second.step(np.zeros(3, int))[1].tolist()


def test_a_loaded_agent_goes_on_with_the_bonus_in_new_episodes(tmp_path: Path) -> None:
    settings: Any = {"n_steps": 4, "device": "cpu", "policy_kwargs": {"backbone": {"preset": "gtrxl", "width": 8}}}
    first, second = (NoveltyBonus(make_vec_env("rltransformers/CueRecall-v0", 3, seed=0), BONUS, 50) for _ in range(2))
    GTrXLPPO("GTrXLPolicy", first, **settings).learn(24).save(tmp_path / "model")
    GTrXLPPO.load(tmp_path / "model", env=second, device="cpu")
    assert second.steps_done == first.steps_done == 8


def test_what_it_cannot_compare_is_refused() -> None:
    with pytest.raises(ConfigError, match="leave it out, or 'processes: tensors'"):
        NoveltyBonus(make_vec_env("rltransformers/CueRecall-v0", 2, processes="tensors"), BONUS)
    with pytest.raises(ConfigError, match="bonus must be"):
        NoveltyBonus(make_vec_env(Walk), 0.0)
