"""Tasks that ask while the answer changes: reference answers, bounds without memory, questions and long episodes."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from rltransformers.envs.memory_rules import Dihedral, LastKey, MovingCue, Parity, Rules

Array = NDArray[Any]
Player = Callable[[Array], Array]
QUESTION_TASKS: tuple[type[Rules], ...] = (MovingCue, LastKey, Parity, Dihedral)


def reference(rules: Rules) -> Player:
    """A player that reads observations alone, step by step, and knows every answer."""
    if isinstance(rules, Parity):
        return parity_counter()
    if isinstance(rules, Dihedral):
        return polygon_turner(rules.sides)
    assert isinstance(rules, LastKey | MovingCue)
    return fact_keeper(rules.sizes[0])


def parity_counter() -> Player:
    ones: Array = np.zeros(1, np.int64)

    def act(observation: Array) -> Array:
        nonlocal ones
        ones = ones + observation[:, 1].astype(np.int64)
        return ones % 2

    return act


def polygon_turner(sides: int) -> Player:
    """Moves all corners of every polygon, one by one, and looks where corner 0 is, and on which side corner 1."""
    corners: list[list[int]] = []

    def act(observation: Array) -> Array:
        if not corners:
            corners.extend([[*range(sides)] for _ in observation])  # the corner at each place
        poses = []
        for row, (turn, flip, _) in enumerate(observation):
            if turn:
                corners[row] = [corners[row][-1], *corners[row][:-1]]
            if flip:
                corners[row] = [corners[row][0], *corners[row][:0:-1]]
            place = corners[row].index(0)
            face_up = corners[row][(place + 1) % sides] == 1
            poses.append(place if face_up else sides + place)
        return np.array(poses)

    return act


def fact_keeper(keys: int) -> Player:
    """A dictionary per row, written and read by key."""
    facts: list[dict[int, int]] = []

    def act(observation: Array) -> Array:
        if not facts:
            facts.extend({} for _ in observation)
        answers = []
        for fact, row in zip(facts, observation, strict=True):
            key, value = row[:keys], row[keys:-1]
            if value.any():
                fact[int(key.argmax())] = int(value.argmax())
            answers.append(fact[int(key.argmax())] if row[-1] else 0)
        return np.array(answers)

    return act


def play(rules: Rules, act: Player, episodes: int = 200, seed: int = 0) -> tuple[Array, Array, Array]:
    """Returns, successes and lengths of episodes."""
    state = rules.start(np.random.default_rng(seed).random((episodes, rules.draws)))
    returns, success, running = np.zeros(episodes), np.zeros(episodes, bool), np.ones(episodes, bool)
    lengths = np.zeros(episodes, np.int64)
    while running.any():
        state, reward, terminated, right, truncated = rules.step(state, act(rules.observe(state)))
        assert truncated is None
        returns += running * reward
        lengths += running
        success |= running & terminated & right
        running &= ~terminated
    return returns, success, lengths


@pytest.mark.parametrize(
    "options",
    [{}, {"question_probability": 1.0}, {"question_probability": 0.0}, {"length": 300, "shortest_length": 9}],
)
@pytest.mark.parametrize("task", QUESTION_TASKS)
def test_a_reference_that_sees_observations_alone_gives_all_answers(
    task: Callable[..., Rules], options: dict[str, Any]
) -> None:
    rules = task(**options)
    returns, success, lengths = play(rules, reference(rules))
    np.testing.assert_allclose(returns, 1.0, atol=1e-12)  # sums of rounded fractions
    assert success.all()
    assert lengths.max() <= rules.horizon and (lengths.min() == rules.horizon) == ("shortest_length" not in options)


@pytest.mark.parametrize(
    "rules",
    [
        MovingCue(colors=1, places=2, length=60),
        MovingCue(colors=16, places=9, length=120, move_probability=1.0),
        MovingCue(length=50, move_probability=0.0),
        LastKey(keys=1, values=2),
        LastKey(keys=32, values=7, length=200),
        Dihedral(sides=4),
        Dihedral(sides=7, length=90),
    ],
    ids=repr,
)
def test_references_know_the_answers_at_other_sizes(rules: Rules) -> None:
    returns, success, _ = play(rules, reference(rules), episodes=50)
    np.testing.assert_allclose(returns, 1.0, atol=1e-12)
    assert success.all()


@pytest.mark.parametrize("task", QUESTION_TASKS)
def test_episodes_of_a_thousand_steps_have_the_spaces_of_short_ones_and_are_answered(
    task: Callable[..., Rules],
) -> None:
    name = f"rltransformers/{task.__name__}-v0"
    short, long = (gymnasium.make_vec(name, 3, length=length) for length in (40, 1000))
    assert short.observation_space == long.observation_space and short.action_space == long.action_space
    rules = task(length=1000)
    act = reference(rules)
    observation, _ = long.reset(seed=0)
    returns = np.zeros(3)
    for t in range(1000):
        observation, reward, terminated, _, infos = long.step(act(observation))
        returns += reward
        assert terminated.all() == (t == 999)
    np.testing.assert_allclose(returns, 1.0, atol=1e-12)
    assert infos["is_success"].all()
