"""Stitching: its rules by hand, what recordings of its parts show and what they hide, and its best policy."""

from typing import Any

import gymnasium
import numpy as np
import pytest

from rltransformers.core.errors import ConfigError
from rltransformers.data import Trajectories, record
from rltransformers.envs.memory_rules import DOWN, LEFT, RIGHT, UP, Stitching


def test_the_way_leads_through_the_door_to_the_far_corner() -> None:
    env = gymnasium.make("rltransformers/Stitching-v0", size=3, part_steps=9)
    observation, _ = env.reset(seed=0)
    assert observation[:3].tolist() == [1, 0, 1]  # first room, bottom row
    for _ in range(2):
        observation, *_ = env.step(LEFT)
    assert observation.tolist() == [1, 0, 1, 0]
    observation, *_ = env.step(UP)
    assert observation.tolist() == [1, 0, 0.5, 0]
    observation, *_ = env.step(UP)
    assert observation.tolist() == [0, 1, 0, 0]  # behind the door
    observation, *_ = env.step(UP)  # a wall: nobody goes back
    assert observation.tolist() == [0, 1, 0, 0]
    for action in (DOWN, DOWN, RIGHT):
        _, reward, terminated, truncated, info = env.step(action)
        assert (reward, terminated, truncated, info) == (0.0, False, False, {})
    observation, reward, terminated, truncated, info = env.step(RIGHT)
    assert observation.tolist() == [0, 1, 1, 1]
    assert (reward, terminated, truncated, info) == (1.0, True, False, {"is_success": True})


def test_an_episode_is_truncated_at_its_limit_and_the_value_goes_on() -> None:
    env = gymnasium.make("rltransformers/Stitching-v0", part_steps=2)
    env.reset(seed=0)
    ends = [env.step(DOWN)[2:4] for _ in range(4)]
    assert ends == [(False, False)] * 3 + [(False, True)]


def recorded(episodes: int = 400) -> Trajectories:
    env = "rltransformers/Stitching-v0"
    return record(env, "random", episodes=episodes, num_envs=20, seed=0, env_kwargs={"parts": True})


def test_no_episode_of_the_parts_shows_the_whole_way() -> None:
    data = recorded()
    kinds = {"from A": 0, "from B": 0, "over the border": 0, "to C": 0}
    for e in range(len(data)):
        episode = data.episode(e)
        rooms = episode.observations[""][:, 1]
        assert len(episode) <= 16
        if rooms[0] == 0:
            kinds["from A"] += 1
            kinds["over the border"] += bool(rooms.any())
            assert episode.rewards.sum() == 0 and episode.truncations[-1]
            assert rooms.sum() <= 3  # on arriving, and two steps behind the door
        else:
            kinds["from B"] += 1
            kinds["to C"] += bool(episode.rewards.sum())
            assert episode.terminations[-1] == (episode.rewards.sum() == 1)
    assert abs(kinds["from A"] - 200) < 40  # 4 standard deviations of 400 coins
    assert kinds["over the border"] >= 5 and kinds["to C"] >= 1


def test_the_best_policy_succeeds_from_every_start() -> None:
    rules = Stitching()
    state = rules.start(np.stack([np.zeros(5), np.arange(5) / 5], 1))
    assert sorted(state["column"].tolist()) == [0, 1, 2, 3, 4]
    done = np.zeros(5, bool)
    for _ in range(16):
        left, down = state["column"] > 0, state["row"] < 4
        first = np.where(left, LEFT, UP)
        state, _, terminated, _, _ = rules.step(state, np.where(state["room"] == 0, first, np.where(down, DOWN, RIGHT)))
        done |= terminated
    assert done.all()


@pytest.mark.parametrize("options", [{"size": 1}, {"part_steps": 0}, {"overlap": 0}, {"parts": 1}])
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        gymnasium.make("rltransformers/Stitching-v0", **options)
