"""What Minari asks of its collector, of our recorder: its tests of ``data_collector``.

Where the same behaviors are tests of ours already: tests/data/test_recorder.py.
"""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rltransformers.core.seeding import numpy_stream
from rltransformers.data import ObservationView, load_trajectories, record, write_minari
from tests.peers.small import VECTOR, Still

minari = pytest.importorskip("minari")
NESTED = spaces.Dict({"one": spaces.Box(1.0, 2.0, (2,)), "two": spaces.Dict({"a": VECTOR, "b": spaces.Discrete(3)})})


def first_seed(seed: int) -> int:
    """What ``record`` resets its only environment with."""
    return int(numpy_stream(seed, "environment").integers(2**31))


@pytest.mark.parametrize("seed", [0, 42, 2**63 - 1])
def test_recorded_actions_played_again_give_what_was_recorded(seed: int) -> None:
    data = record("CartPole-v1", "random", episodes=4, seed=seed)
    env = write_minari(data, "peers/again-v0", overwrite=True).recover_environment()
    for index in range(len(data)):
        episode = data.episode(index)
        observation, _ = env.reset(seed=first_seed(seed) if index == 0 else None)
        np.testing.assert_array_equal(observation, episode.observations[""][0])
        for step, action in enumerate(episode.actions[""]):
            observation, reward, terminated, truncated, _ = env.step(action)
            np.testing.assert_array_equal(observation, episode.observations[""][step + 1])
            assert reward == episode.rewards[step]
            assert (terminated, truncated) == (episode.terminations[step], episode.truncations[step])
    env.close()


def collected(make: Callable[[], gym.Env[Any, Any]], actions: Any, seed: int, episodes: int, **options: Any) -> Any:
    """What Minari's own collector records of the same actions; its later episodes go on with the first seed."""
    pytest.importorskip("jax")
    env = minari.DataCollector(make(), **options)
    taken = iter(actions)
    for index in range(episodes):
        env.reset(seed=seed if index == 0 else None)
        ended = False
        while not ended:
            *_, terminated, truncated, _ = env.step(next(taken))
            ended = terminated or truncated
    return env


@pytest.mark.filterwarnings("ignore::UserWarning")  # of Minari, about an author, code and algorithm that nobody named
def test_the_first_episode_is_the_one_that_minaris_collector_records(request: pytest.FixtureRequest) -> None:
    data = record("CartPole-v1", "random", episodes=1, seed=3)
    env = collected(lambda: gym.make("CartPole-v1"), data.actions[""], first_seed(3), 1)
    theirs = load_trajectories(env.create_dataset("peers/theirs-v0"))
    env.close()
    for one, other in zip(data.episode(0).observations.values(), theirs.episode(0).observations.values(), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(theirs.rewards, data.rewards)
    assert (theirs.env_id, theirs.observation_space, theirs.action_space) == (
        data.env_id,
        data.observation_space,
        data.action_space,
    )


def test_a_part_of_a_nested_observation_is_recorded_under_its_own_space() -> None:
    part = spaces.Dict({"two": spaces.Dict({"a": VECTOR})})

    def chosen(observation: Any) -> Any:
        return {"two": {"a": observation["two"]["a"]}}

    data = record(
        lambda: Still(NESTED, spaces.Discrete(2)), "random", episodes=3, recorded=ObservationView(chosen, part)
    )
    written = write_minari(data, "peers/part-v0")
    assert written.spec.observation_space == part
    assert all(set(episode.observations) == {"two"} for episode in written)
    assert load_trajectories("peers/part-v0").observation_space == part


def test_infos_that_change_their_form_do_not_disturb_a_recording() -> None:
    class Talking(Still):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            observation, reward, terminated, truncated, _ = super().step(action)
            return observation, reward, terminated, truncated, {"step": self.t} if self.t % 2 else {"said": "nothing"}

    data = record(lambda: Talking(VECTOR, spaces.Discrete(2)), "random", episodes=3)
    assert tuple(data.lengths) == (8, 8, 8) and data.truncations.sum() == 3
