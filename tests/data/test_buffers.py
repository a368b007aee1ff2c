"""Buffers of Stable-Baselines3 give the episodes that their environments lived through, whole ones alone."""

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer, RolloutBuffer
from stable_baselines3.common.vec_env import DummyVecEnv

from rltransformers.core.errors import ConfigError, DataError
from rltransformers.data import Trajectories, load_trajectories
from tests.data.coded import code

LENGTHS = ((5, 3, 8, 2, 7), (4, 1, 6, 9, 3))
"""Of the episodes of two environments, again and again; even ones end by a limit."""
WIDE = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))


class Lived(gym.Env[Any, Any]):
    """Observations tell environment, episode and step; what happens is written down in ``episodes``."""

    def __init__(self, number: int, action_space: gym.Space[Any] = WIDE, nested: bool = False) -> None:
        self.number, self.nested = number, nested
        self.action_space = action_space
        box = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.observation_space = spaces.Dict({"place": box, "turn": spaces.Discrete(2)}) if nested else box
        self.episodes: list[dict[str, list[Any]]] = []

    def _seen(self) -> Any:
        place = np.array([code(len(self.episodes), self.step_), self.number], np.float32)
        return {"place": place, "turn": np.int64(self.step_ % 2)} if self.nested else place

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if self.episodes and not self.episodes[-1]["actions"]:
            self.episodes.pop()  # reset twice
        self.step_ = 0
        self.episodes.append({key: [] for key in ("observations", "actions", "rewards", "terminated")})
        self.length = LENGTHS[self.number][(len(self.episodes) - 1) % 5]
        self.episodes[-1]["observations"].append(self._seen())
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(np.asarray(action, self.action_space.dtype))
        self.step_ += 1
        now, reward, over = self.episodes[-1], 10.0 * len(self.episodes) + self.step_, self.step_ == self.length
        terminated = over and len(self.episodes) % 2 == 1
        for key, value in (("actions", action), ("rewards", reward), ("observations", self._seen())):
            now[key].append(value)
        now["terminated"].append(terminated)
        return self._seen(), reward, terminated, over and not terminated, {}


def lived(*envs: Lived) -> DummyVecEnv:
    """The environments as Stable-Baselines3 runs them."""
    return DummyVecEnv([partial(itself, env) for env in envs])


def itself(env: Lived) -> Lived:
    """The environment."""
    return env


def wrong(data: Trajectories, expected: list[dict[str, Any]], final: bool = True, kinds: bool = True) -> list[str]:
    """What differs from the episodes that were lived."""
    assert len(data) == len(expected), (len(data), len(expected))
    found = []
    for index, truth in enumerate(expected):
        episode, length = data.episode(index), len(truth["rewards"])
        if len(episode) != length:
            found.append(f"{index}: {len(episode)} steps for {length}")
            continue
        seen = truth["observations"][: length + final]
        places = [each["place"] for each in seen] if isinstance(seen[0], dict) else seen
        rows = episode.observations["place" if isinstance(seen[0], dict) else ""]
        if not np.array_equal(rows[: length + final], places):
            found.append(f"{index}: observations")
        actions = np.array(truth["actions"], np.float64)
        if not np.allclose(episode.actions[""], actions, atol=1e-6):  # scaled to [-1, 1] and back in float32
            found.append(f"{index}: actions")
        if not np.array_equal(episode.rewards, np.float32(truth["rewards"])):
            found.append(f"{index}: rewards")
        if kinds and bool(episode.terminations[-1]) != truth["terminated"][-1]:
            found.append(f"{index}: termination")
        if bool(episode.truncations[-1]) == bool(episode.terminations[-1]):
            found.append(f"{index}: truncation")
    return found


def whole(env: Lived) -> list[dict[str, Any]]:
    """The episodes of an environment with at least one step."""
    return [episode for episode in env.episodes if episode["actions"]]


def sac(envs: DummyVecEnv, size: int, **options: Any) -> SAC:
    """An agent that acts at random."""
    return SAC("MlpPolicy", envs, buffer_size=size, learning_starts=10_000, device="cpu", seed=0, **options)


@pytest.mark.parametrize("count", [1, 2])
def test_a_replay_buffer_holds_the_episodes_of_every_environment(count: int) -> None:
    envs = [Lived(number) for number in range(count)]
    model = sac(lived(*envs), 1000)
    model.learn(60 * count)
    data = load_trajectories(model.replay_buffer)
    assert wrong(data, [episode for env in envs for episode in whole(env)]) == []
    assert data.steps == 60 * count and data.final_observations
    assert data.action_space == WIDE and data.metadata["format"] == "stable_baselines3"
    assert {bool(value) for value in data.terminations[data.offsets[1:] - 1]} == {True, False}


@pytest.mark.parametrize("size", [20, 23, 31])
def test_a_ring_that_wrapped_begins_with_its_oldest_whole_episode(size: int) -> None:
    envs = [Lived(number) for number in range(2)]
    model = sac(lived(*envs), 2 * size)
    model.learn(120)
    expected = []
    for env in envs:
        starts = np.cumsum([0] + [len(episode["actions"]) for episode in env.episodes])[:-1]
        expected += [episode for episode, start in zip(whole(env), starts, strict=False) if start > 60 - size]
    data = load_trajectories(model.replay_buffer)
    assert wrong(data, expected) == [] and data.steps < 2 * size


def test_an_episode_that_a_new_call_of_learn_cut_is_truncated() -> None:
    env = Lived(0)
    model = sac(lived(env), 100)
    model.learn(11)  # three steps into the third episode
    model.learn(10)
    data = load_trajectories(model.replay_buffer)
    assert tuple(data.lengths)[:4] == (5, 3, 3, 2)
    assert wrong(data, whole(env)) == []


@pytest.mark.parametrize("optimized", [False, True])
def test_ends_that_a_replay_buffer_does_not_tell_apart_need_the_limit(optimized: bool) -> None:
    env = Lived(0)
    buffer_kwargs = {"handle_timeout_termination": False}
    model = sac(lived(env), 100, replay_buffer_kwargs=buffer_kwargs, optimize_memory_usage=optimized)
    model.learn(40)
    with pytest.raises(DataError, match=r"handle_timeout_termination=False, so it does not tell .* pass time_limit="):
        load_trajectories(model.replay_buffer)
    data = load_trajectories(model.replay_buffer, time_limit=8)
    assert wrong(data, whole(env), final=not optimized, kinds=False) == []
    ends = data.offsets[1:] - 1
    np.testing.assert_array_equal(data.truncations[ends], (data.lengths == 8) | (np.arange(len(data)) == len(data) - 1))
    assert data.final_observations != optimized
    if optimized:  # the ring overwrites the last observation of an episode with the first of the next
        assert wrong(data, whole(env), final=True, kinds=False) != []


def test_nested_observations_and_discrete_actions_are_read() -> None:
    env = Lived(1, spaces.Discrete(3), nested=True)
    model = DQN("MultiInputPolicy", lived(env), buffer_size=100, learning_starts=10_000, device="cpu", seed=0)
    model.learn(40)
    data = load_trajectories(model.replay_buffer)
    assert wrong(data, whole(env)) == [] and data.actions[""].dtype == np.int64
    assert list(data.observations) == ["place", "turn"]
    assert list(load_trajectories(model.replay_buffer, observation_leaves=["place"]).observations) == ["place"]
    assert (data.episode(0).observations["turn"] == np.arange(5) % 2).all()


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("trained", [False, True])
def test_a_rollout_buffer_holds_the_episodes_that_began_in_it(count: int, trained: bool) -> None:
    """Also after training, which lays the arrays out anew."""
    envs = [Lived(number) for number in range(count)]
    model = PPO("MlpPolicy", lived(*envs), n_steps=32, batch_size=32, n_epochs=1, device="cpu", seed=0, gamma=0.9)
    model.policy.log_std.data.fill_(1.5)  # actions beyond the bounds, which the environment never sees
    if trained:
        model.learn(64 * count)
    else:
        _, callback = model._setup_learn(64 * count)
        assert model.env is not None
        for _ in range(2):
            model.collect_rollouts(model.env, callback, model.rollout_buffer, 32)
    with pytest.raises(DataError, match="stores only where episodes begin"):
        load_trajectories(model.rollout_buffer)
    data = load_trajectories(model.rollout_buffer, time_limit=100)
    expected = []
    for env in envs:
        starts = np.cumsum([0] + [len(episode["actions"]) for episode in env.episodes])[:-1]
        expected += [episode for episode, start in zip(whole(env), starts, strict=False) if start >= 32]
    differing = [each for each in wrong(data, expected, final=False, kinds=False) if "rewards" not in each]
    assert differing == [] and not data.final_observations
    # The algorithm adds a value to the reward before a limit and nowhere else.
    for index, truth in enumerate(expected):
        plain = slice(None, -1) if not truth["terminated"][-1] else slice(None)
        np.testing.assert_array_equal(data.episode(index).rewards[plain], np.array(truth["rewards"])[plain])


def test_a_pickle_is_read_only_for_those_who_trust_it(tmp_path: Path) -> None:
    env = Lived(0)
    model = sac(lived(env), 100)
    model.learn(30)
    path = tmp_path / "buffer.pkl"
    model.save_replay_buffer(path)
    with pytest.raises(ConfigError, match=r"buffer\.pkl is a pickle, a program .* trust=True"):
        load_trajectories(path)
    assert wrong(load_trajectories(path, trust=True), whole(env)) == []
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(DataError, match=r"buffer\.pkl cannot be unpickled"):
        load_trajectories(path, trust=True)
    path.write_bytes(pickle.dumps(1))
    with pytest.raises(DataError, match="holds int, not a replay buffer"):
        load_trajectories(path, trust=True)


# Faults ------------------------------------------------------------


def filled(steps: int = 12, **options: Any) -> ReplayBuffer:
    """A buffer of one endless episode, filled by hand."""
    box = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    buffer = ReplayBuffer(10, box, spaces.Box(-1, 1, (1,)), "cpu", **options)
    for step in range(steps):
        after = np.array([[step + 1.0, 0.0]], np.float32)
        buffer.add(after - [[1, 0]], after, np.zeros((1, 1)), np.ones(1), np.zeros(1), [{}])
    return buffer


def test_an_empty_buffer_and_one_without_a_beginning_are_named() -> None:
    with pytest.raises(DataError, match=r"ReplayBuffer is empty; fill it first"):
        load_trajectories(filled(0))
    with pytest.raises(DataError, match="holds no beginning of an episode: all 10 steps"):
        load_trajectories(filled(12))
    assert load_trajectories(filled(9)).steps == 9


def test_numbers_that_are_none_and_actions_outside_are_named() -> None:
    buffer = filled(9)
    buffer.rewards[4] = np.nan
    with pytest.raises(DataError, match="rewards of episode 0, step 4 is nan"):
        load_trajectories(buffer)
    buffer = filled(9)
    buffer.actions[3] = 1.5
    with pytest.raises(DataError, match=r"actions of episode 0, step 3 is \[1\.5\], outside the bounds"):
        load_trajectories(buffer)


def test_spaces_that_do_not_fit_are_named() -> None:
    with pytest.raises(DataError, match=r"observations has rows of shape \(2,\)"):
        load_trajectories(filled(9), observation_space=spaces.Box(-1, 1, (3,)))
    with pytest.raises(ConfigError, match="split_on_discontinuity does not apply to buffers"):
        load_trajectories(filled(9), split_on_discontinuity=True)


def test_buffers_of_a_kind_that_was_not_filled_are_named() -> None:
    space = spaces.Dict({"a": spaces.Box(-1, 1, (2,))})
    with pytest.raises(DataError, match="DictReplayBuffer is empty"):
        load_trajectories(DictReplayBuffer(5, space, spaces.Discrete(2)))
    with pytest.raises(DataError, match="RolloutBuffer is empty"):
        load_trajectories(RolloutBuffer(5, space["a"], spaces.Discrete(2)))
