"""The description of a data set says what was understood, and what can be asked for."""

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rltransformers.data import Trajectories, load_trajectories
from rltransformers.data.starts import share_of_start
from tests.data.coded import coded_episodes


def plant(episodes: int = 60, luck: float = 1.0, **changes: Any) -> Trajectories:
    """Episodes of 4 steps whose return is ``luck`` times the first number of the first observation, plus noise."""
    rng = np.random.default_rng(0)
    made: list[dict[str, Any]] = []
    for _ in range(episodes):
        state = rng.normal(size=(5, 3)).astype(np.float32)
        state[:, 2] = 7
        reward = luck * state[0, 0] + 0.1 * rng.normal()
        made.append(
            {
                "observations": {"state": state, "picture": rng.integers(0, 256, (5, 20, 20)).astype(np.uint8)},
                "actions": rng.normal(size=(4, 2)).astype(np.float32).clip(-1, 1) * np.array([1, 0.1], np.float32),
                "rewards": np.array([reward, 0, 0, 0], np.float32),
                "terminations": len(made) % 3 == 0,
            }
        )
    for episode in made:
        episode |= {key: change(episode) for key, change in changes.items()}
    return load_trajectories(made, name="plant")


def test_leaves_are_described_with_their_ranges_and_constant_numbers() -> None:
    data = plant()
    summary = data.summary()
    state, picture = summary["observation_values"]["state"], summary["observation_values"]["picture"]
    assert (state["shape"], state["type"], state["constant"]) == ([3], "float32", 1)
    assert (state["low"][2], state["high"][2]) == (7, 7)
    assert (
        state["min"] == data.observations["state"].min() and state["high"][0] == data.observations["state"][:, 0].max()
    )
    assert (picture["shape"], picture["min"], picture["max"], picture["constant"]) == ([20, 20], 0, 255, 0)
    assert json.loads(json.dumps(summary)) == summary
    text = data.describe()
    assert "1 of 3 numbers never change: 2" in text and "observations, of a guessed space" in text
    assert "20 terminated, 40 truncated" in text and max(map(len, text.splitlines())) <= 80


def test_actions_are_described_with_their_bounds_and_the_error_of_their_mean() -> None:
    data = plant(actions=lambda episode: np.append(episode["actions"][:, :1], [[0.5], [-0.5], [1], [-1]], axis=1))
    actions, values = data.actions[""], data.summary()["action_values"][""]
    np.testing.assert_allclose(values["error_of_mean"], actions.std(0), rtol=1e-5)
    assert values["share_at_bounds"] == [float((np.abs(actions[:, 0]) == 1).mean()), 0.5]
    assert values["steps_beyond"] == 0 and "beyond -1..1" not in data.describe()


def test_actions_beyond_a_guessed_box_are_named_with_the_line_to_write() -> None:
    data = plant(actions=lambda episode: np.array([[0, 1.37], [0, 0], [0, 0], [0, -1.2]], np.float32))
    assert data.summary()["action_values"][""]["share_beyond"] == [0.0, 0.5]
    text = " ".join(data.describe().split())
    assert "120 steps have an action beyond -1..1 (from -1.2 to 1.37)" in text and "np.clip(actions, -1, 1)" in text
    assert "entries [1] in 120 of 240 steps; write np.clip(actions, -1, 1)" in data.guesses["action_space"]
    given = load_trajectories(data, action_space=spaces.Box(-2, 2, (2,)))
    assert "actions, of a guessed space" in data.describe() and "actions, of a guessed" not in given.describe()


def test_classes_are_described_with_the_error_of_the_most_frequent() -> None:
    data = plant(actions=lambda episode: np.array([0, 2, 2, 1]))
    values = data.summary()["action_values"][""]
    assert (values["classes"], values["error_of_most_frequent"]) == ([3], [0.5])
    one_hot = plant(actions=lambda episode: np.eye(3, dtype=np.float32)[[0, 2, 2, 1]])
    assert one_hot.summary()["action_values"][""]["one_hot"] and "every row is one-hot" in one_hot.describe()


@pytest.mark.parametrize(("luck", "low", "high"), [(1.0, 0.9, 1.0), (0.0, 0.0, 0.1)])
def test_luck_of_the_start_is_told(luck: float, low: float, high: float) -> None:
    data = plant(luck=luck)
    share = share_of_start(data)
    assert share is not None and low <= share["share"] <= high
    assert ("luck cannot be asked for" in " ".join(data.describe().split())) == (luck > 0)


def test_luck_that_is_no_line_is_found_by_neighbors() -> None:
    def cue(episode: dict[str, Any]) -> dict[str, Any]:
        corner = np.sign(episode["observations"]["state"][0, :2])
        episode["rewards"] = np.array([corner[0] * corner[1], 0, 0, 0], np.float32)
        return {"corner": np.tile(corner, (5, 1)).astype(np.float32)}

    share = share_of_start(plant(observations=cue))
    assert share is not None and share["method"] == "nearest neighbors" and share["share"] > 0.7


def test_too_few_episodes_and_equal_returns_tell_nothing_of_luck() -> None:
    for data in (plant(19), plant(rewards=lambda episode: np.ones(4, np.float32))):
        assert data.summary()["return_explained_by_start"] is None and "cannot be told" in data.describe()


def test_the_episodes_near_a_target_are_counted() -> None:
    returns = iter([0, 0, 50, 95, 94, 100] * 10)
    data = plant(rewards=lambda episode: np.array([next(returns), 0, 0, 0], np.float32))
    near = {each["return"]: each["episodes"] for each in data.summary()["near_targets"]}
    assert near == {94.0: 20, 100.0: 20}  # 94 and 95; 95 and 100


def test_ranges_of_returns_that_no_episode_is_near_are_named() -> None:
    returns = iter([0, 0, 50, 95, 94, 100] * 10)
    data = plant(rewards=lambda episode: np.array([next(returns), 0, 0, 0], np.float32))
    assert data.summary()["return_gaps"] == [[5.0, 45.0], [55.0, 89.0]]
    text = " ".join(data.describe().split())
    assert "No episode is so near to returns of 5 to 45, 55 to 89: what a target there obtains is a guess." in text
    whole = plant(60, rewards=lambda episode: np.array([float(episode["rewards"][0] > 0), 0, 0, 0], np.float32) * 0)
    assert whole.summary()["return_gaps"] == [] and "No episode is so near" not in whole.describe()


def test_data_without_rewards_have_no_returns_and_no_targets() -> None:
    episodes = [{key: values for key, values in each.items() if key != "rewards"} for each in coded_episodes()]
    with pytest.warns(UserWarning, match="has no rewards"):
        data = load_trajectories(episodes)
    text = data.describe()
    assert "not logged, so only mode='bc' learns from these data" in text
    assert "targets" not in text and "median " not in text.partition("actions")[2]
    assert not data.summary()["has_rewards"] and load_trajectories(coded_episodes()).summary()["has_rewards"]
