"""Tasks that ask while the answer changes: reference answers, bounds without memory, questions and long episodes."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from rltransformers.core.errors import ConfigError
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
    [{}, {"steps_per_question": 1}, {"steps_per_question": 10**9}, {"length": 300, "shortest_length": 9}],
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


def watch(rules: Rules, episodes: int, seed: int = 0) -> Iterator[tuple[Array, Array, Array, Array]]:
    """Of each step: observations, right answers, the rewards for these, and which episodes run."""
    state = rules.start(np.random.default_rng(seed).random((episodes, rules.draws)))
    running = np.ones(episodes, bool)
    act = reference(rules)
    while running.any():
        observation = rules.observe(state)
        answer = act(observation)
        state, reward, terminated, *_ = rules.step(state, answer)
        yield observation, answer, reward * running, running
        running = running & ~terminated


def best_without_memory(rules: Rules, episodes: int) -> float:
    """Mean return of the best of all functions from observations to actions, chosen on the very episodes it plays."""
    pays: dict[bytes, Array] = {}
    for observation, answer, reward, _ in watch(rules, episodes):
        for row in np.unique(observation[reward > 0], axis=0):
            here = (observation == row).all(1)
            total = pays.setdefault(row.tobytes(), np.zeros(rules.actions))
            total += np.bincount(answer[here], reward[here], rules.actions)
    return float(sum(total.max() for total in pays.values())) / episodes


def share_of_steps(length: int, every: int) -> Array:
    """The expected share of each step in the questions of an episode: whole blocks of steps, the rest, the last one."""
    shares, (blocks, rest) = np.zeros(length), divmod(length - 1, every)
    for others, chance in ((blocks, 1 - rest / every), (blocks + 1, rest / every)):
        shares[-1] += chance / (others + 1)
        shares[: blocks * every] += chance / every / (others + 1)
    shares[blocks * every : -1] += 1 / every / (blocks + 2)
    return shares


def polygon_bound(sides: int, shares: Array) -> float:
    """Laws of the pose behind each step by its last move, from permutations of the corners."""
    start = tuple(range(sides))
    law = {start: 1.0}
    pays: list[dict[tuple[int, ...], float]] = [{}, {}, {}]
    for share in shares:
        following: dict[tuple[int, ...], float] = {}
        for pose, chance in law.items():
            for move, to in enumerate(((pose[-1], *pose[:-1]), (pose[0], *pose[:0:-1]), pose)):
                following[to] = following.get(to, 0.0) + chance / 3
                pays[move][to] = pays[move].get(to, 0.0) + share * chance / 3
        law = following
    return float(sum(max(by_pose.values()) for by_pose in pays))


def parity_bound(length: int, every: int) -> float:
    """The formula of the docstring."""
    blocks, rest = divmod(length - 1, every)
    share = (1 - rest / every) / (every * (blocks + 1)) + rest / (every**2 * (blocks + 2))
    share = share if blocks else 1 / (2 * every) if rest else 1.0
    return (1 + share) / 2


@pytest.mark.parametrize(("length", "every"), [(1, 3), (2, 3), (4, 3), (7, 2), (40, 4), (40, 1)])
def test_the_formula_for_parity_without_memory_is_the_share_of_the_first_step(length: int, every: int) -> None:
    shares = share_of_steps(length, every)
    assert shares.sum() == pytest.approx(1.0)
    assert parity_bound(length, every) == pytest.approx((1 + shares[0]) / 2)


def test_bounds_of_the_docstrings_at_the_default_options() -> None:
    assert parity_bound(40, 4) == pytest.approx(0.512, abs=5e-4)
    assert polygon_bound(3, share_of_steps(40, 4)) == pytest.approx(0.192, abs=5e-4)
    assert polygon_bound(3, share_of_steps(400, 4)) == pytest.approx(1 / 6, abs=0.003)


@pytest.mark.parametrize(
    ("rules", "bound"),
    [
        (Parity(), parity_bound(40, 4)),
        (Parity(length=3, steps_per_question=2), parity_bound(3, 2)),
        (Parity(length=2, shortest_length=1), np.log(2) / np.log(3) + parity_bound(2, 4) * np.log(1.5) / np.log(3)),
        (Dihedral(), polygon_bound(3, share_of_steps(40, 4))),
        (Dihedral(sides=4, length=6, steps_per_question=2), polygon_bound(4, share_of_steps(6, 2))),
        (LastKey(), 1 / 4),
        (LastKey(keys=3, values=2, length=5), 1 / 2),
        (MovingCue(), 1 / 4),
        (MovingCue(colors=2, places=3, length=9, move_probability=0.7), 1 / 3),
    ],
    ids=repr,
)
def test_no_function_of_the_present_observation_gets_more_than_the_bound(rules: Rules, bound: float) -> None:
    """The best function is chosen on the episodes that it plays, which adds to its mean and takes nothing away.

    5,000 returns: 4 deviations (at most 1/2, of one question) of their mean are 0.029.
    """
    best = best_without_memory(rules, 5000)
    assert abs(best - bound) < 0.029


@pytest.mark.parametrize("task", QUESTION_TASKS)
def test_one_wrong_answer_costs_its_share_and_the_success(task: Callable[..., Rules]) -> None:
    rules = task()
    right_answer = reference(rules)
    questions = np.zeros(50)

    def act(observation: Array) -> Array:
        nonlocal questions
        first = (questions == 0) & (observation[:, -1] == 1)
        questions = questions + observation[:, -1]
        return (right_answer(observation) + first) % rules.actions

    returns, success, lengths = play(rules, act, episodes=50)
    assert not success.any() and (lengths == 40).all()
    np.testing.assert_allclose(returns, 1 - 1 / questions, atol=1e-12)  # sums of rounded fractions


@pytest.mark.parametrize(("task", "silent"), [(MovingCue, 3), (LastKey, 1), (Parity, 0), (Dihedral, 0)])
@pytest.mark.parametrize("every", [1, 4, 7, 10**9])
def test_one_of_every_few_steps_asks_and_the_last_one_always(
    task: Callable[..., Rules], silent: int, every: int
) -> None:
    """Of 20 episodes of 2,500 steps; 4 deviations of the mean place of a question in its block."""
    rules = task(length=2500, steps_per_question=every)
    state = rules.start(np.random.default_rng(0).random((20, rules.draws)))
    rows = []
    for _ in range(2500):
        rows.append(rules.observe(state)[:, -1])
        state = rules.step(state, np.zeros(20, np.int64)).state
    asks = np.stack(rows)
    np.testing.assert_array_equal(asks.sum(0), state["questions"])
    assert not asks[:silent].any() and asks[-1].all()
    blocks, rest = divmod(2499 - silent, every)
    assert (asks[2499 - rest : -1].sum(0) <= 1).all()
    if blocks:
        within = asks[silent : 2499 - rest].reshape(blocks, every, 20)
        assert (within.sum(1) == 1).all()
        deviation = ((every**2 - 1) / 12 / (20 * blocks)) ** 0.5
        assert abs(within.argmax(1).mean() - (every - 1) / 2) <= 4 * deviation


@pytest.mark.parametrize("task", QUESTION_TASKS)
def test_observations_tell_neither_the_time_nor_the_length(task: Callable[..., Rules]) -> None:
    """Episodes of one seed and two lengths look the same before the last step of the shorter one."""
    draws = np.random.default_rng(0).random((30, 2))
    shown = []
    for length in (12, 500):
        rules = task(length=length)
        state = rules.start(draws)
        rows = []
        for _ in range(11):
            rows.append(rules.observe(state))
            state = rules.step(state, np.zeros(30, np.int64)).state
        shown.append(np.stack(rows))
    np.testing.assert_array_equal(shown[0], shown[1])
    assert set(np.unique(shown)) == {0, 1}


@pytest.mark.parametrize(("task", "shortest"), [(MovingCue, 4), (LastKey, 2), (Parity, 1), (Dihedral, 1)])
def test_lengths_of_episodes_are_log_uniform(task: Callable[..., Rules], shortest: int) -> None:
    draws = np.stack([np.zeros(20_000), (np.arange(20_000) + 0.5) / 20_000], 1)
    state = task(length=12, shortest_length=shortest).start(draws)
    lengths, counts = np.unique(state["last"] + 1, return_counts=True)
    np.testing.assert_array_equal(lengths, np.arange(shortest, 13))
    shares = np.log((lengths + 1) / lengths) / np.log(13 / shortest)
    np.testing.assert_allclose(counts, 20_000 * shares, atol=2)  # a cell of the grid at either edge


def observations(rules: Rules, episodes: int, steps: int) -> Array:
    """Of all steps [steps, episodes, entries]; no episode ends before."""
    state = rules.start(np.random.default_rng(0).random((episodes, rules.draws)))
    rows = []
    for _ in range(steps):
        rows.append(rules.observe(state))
        state = rules.step(state, np.zeros(episodes, np.int64)).state
    return np.stack(rows)


def test_bits_and_moves_are_uniform_and_independent_of_questions_and_each_other() -> None:
    """20,000 steps: 4 deviations of a share of one half are 0.0141, of a correlation 0.0283."""
    for task, values in ((Parity, 2), (Dihedral, 3)):
        rows = observations(task(length=1000), 100, 200).reshape(-1, 3)
        shares = rows[:, :2].mean(0)
        np.testing.assert_allclose(shares, 1 / values, atol=0.0141)
        assert (rows[:, 0] * rows[:, 1] == 0).all()
        for first, second in ((0, 2), (1, 2)):
            assert abs(np.corrcoef(rows[:, first], rows[:, second])[0, 1]) < 0.0283
        assert abs(np.corrcoef(rows[:-100, 0], rows[100:, 0])[0, 1]) < 0.0283


def test_the_order_of_moves_of_the_polygon_matters() -> None:
    """Triangle: turn, then flip puts corner 0 to place 2; flip, then turn to place 1; both with the face down."""
    rules = Dihedral()
    for moves, pose in (((0, 1), 5), ((1, 0), 4), ((0, 0, 0), 0), ((1, 1), 0), ((2, 0), 1), ((0, 1, 2), 5)):
        state: dict[str, Array] = rules.first_values(1)
        for move in moves:
            state |= rules.event(state, np.array([[0, move, 0, 0]], np.uint64))
        assert rules.answer(state).tolist() == [pose]


def test_last_key_writes_any_pair_and_asks_for_any_key_that_was_written() -> None:
    """100 x 400 steps: shares of 4 keys, 3 values and 12 pairs within 4 deviations of 10,000 steps."""
    rows = observations(LastKey(keys=4, values=3, length=1000), 100, 400)
    asks, keys, values = rows[..., -1] == 1, rows[..., :4], rows[..., 4:-1]
    assert (keys.sum(-1) == 1).all() and (values.sum(-1) == ~asks).all()
    np.testing.assert_allclose(keys[asks].mean(0), 1 / 4, atol=0.0174)
    pairs = np.einsum("nk,nv->kv", keys[~asks], values[~asks]) / (~asks).sum()
    np.testing.assert_allclose(pairs, 1 / 12, atol=0.0174)
    written = np.zeros((100, 4), bool)
    for ask, key in zip(asks, keys, strict=True):
        assert ((key > 0) & written).any(1)[ask].all()
        written |= (key > 0) & ~ask[:, None]


def test_a_question_of_last_key_picks_any_written_key() -> None:
    """Keys 1 and 3 of 5 are written; every number of the generator picks one of them, each as often."""
    rules = LastKey(keys=5, values=2)
    state = {"values": np.array([[-1, 0, -1, 1, -1]]).repeat(6, 0), "asked": np.ones(6, bool)}
    event = rules.event(state, np.stack([np.arange(6)] * 4, 1).astype(np.uint64))
    assert event["key"].tolist() == [1, 3] * 3 and (event["told"] == -1).all()
    np.testing.assert_array_equal(event["values"], state["values"])


def test_moving_cue_tells_all_places_then_moves_one_object_now_and_then_to_another_place() -> None:
    """3 colors, 4 places, 100 x 400 steps: 4 deviations of a share of 0.3 of 30,000 steps are 0.0106."""
    rules = MovingCue(length=1000, move_probability=0.3)
    rows = observations(rules, 100, 400)
    colors, places, asks = rows[..., :3], rows[..., 3:-1], np.equal(rows[..., -1], 1)
    np.testing.assert_array_equal(colors[:3], np.eye(3)[:, None].repeat(100, 1))
    assert (places[:3].sum(-1) == 1).all()
    now = places[:3].argmax(-1).T.copy()
    later = ~asks[3:]
    told: Array = np.asarray(places[3:].any(-1))
    assert not (told & asks[3:]).any()
    assert (colors[3:].any(-1) == (told | asks[3:])).all()  # silence else
    assert abs(told[later].mean() - 0.3) < 0.0106
    np.testing.assert_allclose(colors[3:][told].mean(0), 1 / 3, atol=4 * (2 / 9 / told.sum()) ** 0.5)
    shifts = []
    for row in rows[3:]:
        moved = np.flatnonzero(row[:, 3:-1].any(-1))
        color, place = row[moved, :3].argmax(-1), row[moved, 3:-1].argmax(-1)
        shifts.append((place - now[moved, color]) % 4)
        now[moved, color] = place
    shift, counts = np.unique(np.concatenate(shifts), return_counts=True)
    assert shift.tolist() == [1, 2, 3]
    np.testing.assert_allclose(counts / counts.sum(), 1 / 3, atol=4 * (2 / 9 / counts.sum()) ** 0.5)


@pytest.mark.parametrize(
    ("task", "options", "words"),
    [
        ("Parity", {"length": 0}, "length must be a whole number in [1, 1000000], got 0"),
        ("Parity", {"length": 10**7}, "length must be a whole number in [1, 1000000], got 10000000"),
        ("Parity", {"shortest_length": 41}, "length with shortest_length 41 must be a whole number of at least 41"),
        ("Parity", {"steps_per_question": 0}, "steps_per_question must be a whole number in [1, 1000000000], got 0"),
        ("Dihedral", {"sides": 2}, "sides must be a whole number in [3, 1000], got 2"),
        ("LastKey", {"length": 1}, "length with questions from step 2 on must be a whole number of at least 2, got 1"),
        ("LastKey", {"shortest_length": 1}, "shortest_length with questions from step 2 on must be"),
        ("LastKey", {"keys": 0}, "keys must be a whole number in [1, 1000], got 0"),
        ("LastKey", {"values": 1}, "values must be a whole number in [2, 1000], got 1"),
        ("MovingCue", {"colors": 40}, "length with questions from step 41 on must be a whole number of at least 41"),
        ("MovingCue", {"colours": 4}, "unknown setting colours; did you mean 'colors'"),
        ("MovingCue", {"places": 1}, "places must be a whole number in [2, 1000], got 1"),
        ("MovingCue", {"move_probability": -0.1}, "move_probability must be a finite number in [0, 1], got -0.1"),
    ],
)
def test_impossible_options_of_tasks_that_ask_are_refused(task: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        gymnasium.make(f"rltransformers/{task}-v0", **options)
