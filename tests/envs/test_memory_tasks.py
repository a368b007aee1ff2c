"""The memory tasks: their rules by hand, their random and best scores, and one truth in scalar and vector form."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import InvalidAction, ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray
from stable_baselines3.common.env_util import make_vec_env

from rltransformers.core.errors import ConfigError
from rltransformers.envs import TASKS
from rltransformers.envs.memory_rules import DOWN, LEFT, RIGHT, UP, CueRecall, KeyToDoor, PassiveTMaze

Array = NDArray[Any]
MODES = tuple(AutoresetMode)
SMALL: dict[str, dict[str, Any]] = {
    "CueRecall": {"delay": 3, "cues": 4, "shortest_delay": 1},
    "PassiveTMaze": {"corridor": 4, "shortest_corridor": 1},
    "ActiveTMaze": {"corridor": 3},
    "KeyToDoor": {"size": 3, "phase_steps": 4},
    "Stitching": {"size": 2, "part_steps": 5, "parts": True},
}


def make(task: str, **options: Any) -> gymnasium.Env[Any, Any]:
    return gymnasium.make(f"rltransformers/{task}-v0", **options)


def make_vec(task: str, num_envs: int, **options: Any) -> VectorEnv[Any, Any, Any]:
    return gymnasium.make_vec(f"rltransformers/{task}-v0", num_envs=num_envs, **options)


def play(task: str, episodes: int, act: Callable[[Array], Array], **options: Any) -> tuple[Array, Array]:
    """Returns and successes; all copies of a task end together, so they are reset together."""
    copies = min(episodes, 5000)
    env = make_vec(task, copies, autoreset_mode=AutoresetMode.DISABLED, **options)
    returns, success = [], []
    for round_ in range(episodes // copies):
        observation, _ = env.reset(seed=0 if round_ == 0 else None)
        returns.append(np.zeros(copies))
        ended = np.zeros(copies, bool)
        while not ended.any():
            observation, reward, ended, _, infos = env.step(act(observation))
            returns[-1] += reward
        assert ended.all()
        success.append(infos["is_success"])
    return np.concatenate(returns), np.concatenate(success)


def plain(value: Any) -> Any:
    """Arrays of objects (``final_obs``) as lists, which numpy's comparison can look into."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return list(value) if isinstance(value, np.ndarray) and value.dtype.hasobject else value


def random_policy(actions: int, seed: int = 1) -> Callable[[Array], Array]:
    rng = np.random.default_rng(seed)
    return lambda observation: rng.integers(0, actions, len(observation))


@pytest.mark.parametrize("task", TASKS)
def test_gymnasium_checker_passes_without_a_warning(task: str) -> None:
    check_env(make(task).unwrapped)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.filterwarnings("ignore:.*initialised with render_mode")
def test_make_vec_env_of_stable_baselines3_takes_them(task: str) -> None:
    envs = make_vec_env(f"rltransformers/{task}-v0", n_envs=2, seed=0)
    assert envs.observation_space.contains(np.asarray(envs.reset())[0])
    with pytest.raises(TypeError, match="leave out render_mode"):
        make(task, render_mode="human")


@pytest.mark.parametrize("task", TASKS)
def test_make_vec_uses_the_numpy_program_by_default(task: str) -> None:
    assert type(make_vec(task, 2).unwrapped).__name__ == f"{task}Vector"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("task", TASKS)
def test_vector_form_equals_scalar_copies_row_by_row(task: str, mode: AutoresetMode) -> None:
    """Observations, rewards, ends and infos (final ones too) equal those of SyncVectorEnv over several episodes."""
    num_envs = 3
    ours = make_vec(task, num_envs, autoreset_mode=mode, **SMALL[task])
    sync = SyncVectorEnv([lambda: make(task, **SMALL[task])] * num_envs, autoreset_mode=mode)
    assert ours.metadata["autoreset_mode"] is sync.metadata["autoreset_mode"] is mode
    assert ours.observation_space == sync.observation_space and ours.action_space == sync.action_space
    np.testing.assert_equal(ours.reset(seed=5), sync.reset(seed=5))
    sync.action_space.seed(0)
    ends = 0
    for _ in range(60):
        actions = sync.action_space.sample()
        row, expected = ours.step(actions), sync.step(actions)
        np.testing.assert_equal([plain(part) for part in row], [plain(part) for part in expected])
        assert [part.dtype for part in row[:4]] == [part.dtype for part in expected[:4]]
        ended = row[2] | row[3]
        ends += ended.sum()
        if mode is AutoresetMode.DISABLED and ended.any():
            np.testing.assert_equal(
                ours.reset(options={"reset_mask": ended}), sync.reset(options={"reset_mask": ended.copy()})
            )
    assert ends > num_envs


def test_a_reset_mask_spares_the_other_copies() -> None:
    env = make_vec("KeyToDoor", 4)
    before, _ = env.reset(seed=0)
    for _ in range(3):
        before, *_ = env.step(np.array([UP, RIGHT, DOWN, LEFT]))
    after, _ = env.reset(options={"reset_mask": np.array([False, True, False, False])})
    np.testing.assert_array_equal(after[[0, 2, 3]], before[[0, 2, 3]])
    assert (after[1] != before[1]).any()


def test_the_same_seed_gives_the_same_episodes_and_another_does_not() -> None:
    first, again, other = (make_vec("KeyToDoor", 8).reset(seed=seed)[0] for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    np.testing.assert_array_equal(first[1:], other[:-1])  # copy i is seeded with seed + i


def test_cue_recall_shows_the_cue_once_and_asks_at_the_end() -> None:
    env = make("CueRecall", delay=2, cues=3)
    observation, _ = env.reset(seed=0)
    cue = int(observation.argmax())
    assert observation.sum() == 1.0 and cue < 3
    for _ in range(2):
        observation, reward, terminated, *_ = env.step(0)
        assert (observation == 0).all() and reward == 0.0 and not terminated
    observation, *_ = env.step(0)
    np.testing.assert_array_equal(observation, [0, 0, 0, 1])
    _, reward, terminated, truncated, info = env.step(cue)
    assert (reward, terminated, truncated, info) == (1.0, True, False, {"is_success": True})


def test_passive_t_maze_hides_the_place_and_charges_for_lagging() -> None:
    env = make("PassiveTMaze", corridor=2)
    observation, _ = env.reset(seed=0)
    goal = observation[1]
    assert observation[0] == 0 and abs(goal) == 1
    observation, reward, *_ = env.step(LEFT)  # a wall: one step behind from here on
    assert reward == -1 / 2
    np.testing.assert_array_equal(observation, [0, 0])  # the cue is not shown again
    observation, reward, *_ = env.step(RIGHT)
    assert reward == -1 / 2 and (observation == 0).all()
    observation, reward, terminated, _, info = env.step(RIGHT)
    np.testing.assert_array_equal(observation, [1, 0])
    assert (reward, terminated, info) == (0.0, True, {"is_success": False})


def test_active_t_maze_shows_the_cue_only_at_the_left_end() -> None:
    env = make("ActiveTMaze", corridor=2)
    observation, _ = env.reset(seed=0)
    np.testing.assert_array_equal(observation, [0, 0])
    observation, reward, *_ = env.step(LEFT)
    goal = observation[1]
    assert abs(goal) == 1 and reward == 0.0
    for _ in range(3):
        observation, reward, *_ = env.step(RIGHT)
        assert reward == 0.0
    np.testing.assert_array_equal(observation, [1, 0])
    _, reward, terminated, _, info = env.step(UP if goal > 0 else DOWN)
    assert (reward, terminated, info) == (1.0, True, {"is_success": True})


def log_uniform(lengths: Array) -> Array:
    """How probable each of consecutive lengths is: as wide as log(length + 1) - log(length)."""
    return np.log((lengths + 1) / lengths) / np.log((lengths[-1] + 1) / lengths[0])


@pytest.mark.parametrize("shortest", [1, 3, 10, None])
def test_delays_of_all_lengths_are_log_uniform(shortest: int | None) -> None:
    state = CueRecall(delay=10, cues=3, shortest_delay=shortest).start((np.arange(60_000) + 0.5)[:, None] / 60_000)
    expected = np.arange(shortest or 10, 11)
    for cue in range(3):
        delays, counts = np.unique(state["due"][state["cue"] == cue] - 1, return_counts=True)
        np.testing.assert_array_equal(delays, expected)
        np.testing.assert_allclose(counts, 20_000 * log_uniform(expected), atol=2)  # a cell of the grid at either edge


@pytest.mark.parametrize("shortest", [1, 3, 10, None])
def test_t_mazes_of_all_lengths_are_log_uniform_and_pay_the_same(shortest: int | None) -> None:
    rules = PassiveTMaze(corridor=10, shortest_corridor=shortest)
    draws = (np.arange(20_000) + 0.5)[:, None] / 20_000
    first = rules.start(draws)
    expected = np.arange(shortest or 10, 11)
    for goal in (-1, 1):
        lengths, counts = np.unique(first["end"][first["goal"] == goal], return_counts=True)
        np.testing.assert_array_equal(lengths, expected)
        np.testing.assert_allclose(counts, 10_000 * log_uniform(expected), atol=2)  # a cell of the grid at either edge
    np.testing.assert_array_equal(first["goal"], PassiveTMaze(corridor=10).start(draws)["goal"])
    for act, best in ((RIGHT, 0.0), (LEFT, -1.0)):  # to the junction and no turn; behind at every step but the last
        state, returns, running = first, np.zeros(20_000), np.ones(20_000, bool)
        for t in range(1, 12):
            state, reward, terminated, *_ = rules.step(state, np.full(20_000, act))
            returns += np.where(running, reward, 0.0)
            running &= ~terminated
            np.testing.assert_array_equal(running, first["end"] >= t)
        np.testing.assert_allclose(returns, best, atol=1e-12)  # sums of ten rounded fractions


def t_maze_walker(start: str) -> Callable[[Array], Array]:
    """Right to the junction, then to the remembered side, straight ("passive") or by way of the cue ("active")."""
    goal: Array | None = None

    def act(observation: Array) -> Array:
        nonlocal goal
        first = goal is None
        if goal is None:
            goal = np.zeros(len(observation))
        at_junction = observation[:, 0] == 1
        goal = np.where(~at_junction & (observation[:, 1] != 0), observation[:, 1], goal)
        ahead = LEFT if first and start == "active" else RIGHT
        return np.where(at_junction, np.where(goal > 0, UP, DOWN), ahead)

    return act


def cue_rememberer() -> Callable[[Array], Array]:
    cue: Array | None = None

    def act(observation: Array) -> Array:
        nonlocal cue
        if cue is None:
            cue = observation[:, :-1].argmax(1)
        return cue

    return act


def object_seeker(observation: Array) -> Array:
    """One step towards the object in view; memory is not needed, since the two errands are independent."""
    in_view, rows, columns = observation[:, 3:].T
    vertical = np.where(rows > 0, DOWN, UP)
    horizontal = np.where(columns > 0, RIGHT, LEFT)
    return np.where(in_view * (columns != 0) > 0, horizontal, vertical)


@pytest.mark.parametrize(
    ("task", "act"),
    [
        ("CueRecall", cue_rememberer()),
        ("PassiveTMaze", t_maze_walker("passive")),
        ("ActiveTMaze", t_maze_walker("active")),
        ("KeyToDoor", object_seeker),
    ],
)
def test_the_best_policy_succeeds_in_every_episode_with_return_one(task: str, act: Callable[[Array], Array]) -> None:
    returns, success = play(task, 500, act)
    np.testing.assert_array_equal(returns, 1.0)
    assert success.all()


@pytest.mark.parametrize("task", ["PassiveTMaze", "ActiveTMaze"])
def test_a_walker_without_memory_gets_half(task: str) -> None:
    """Always up. 4 standard deviations of a mean of 4,000 fair coins are 0.032."""
    returns, _ = play(task, 4000, lambda observation: np.where(observation[:, 0] == 1, UP, RIGHT))
    assert abs(returns.mean() - 0.5) < 0.032


@pytest.mark.parametrize("cues", [2, 5])
def test_guessing_the_cue_succeeds_at_chance(cues: int) -> None:
    """4 standard deviations of a mean of 20,000 guesses are at most 0.0142."""
    returns, _ = play("CueRecall", 20_000, random_policy(cues), delay=1, cues=cues)
    assert abs(returns.mean() - 1 / cues) < 0.0142


def hit_rate(size: int, steps: int) -> float:
    """Chance that a random walk from a random cell visits a random other cell, by powers of its transition matrix."""
    cells = np.arange(size**2)
    row, column = divmod(cells, size)
    walk = np.zeros((size**2, size**2))
    for down, right in ((1, 0), (-1, 0), (0, 1), (0, -1)):
        onto = np.clip(row + down, 0, size - 1) * size + np.clip(column + right, 0, size - 1)
        walk[cells, onto] += 0.25
    rates = []
    for goal in cells:
        absorbing = walk.copy()
        absorbing[goal] = cells == goal
        reached = np.linalg.matrix_power(absorbing, steps)[:, goal]
        rates.append(reached[cells != goal].mean())
    return float(np.mean(rates))


def test_a_random_walk_succeeds_in_key_to_door_at_the_published_rate() -> None:
    """0.1775 per room and 3.15 % for both by theory; published 3.1 %, rounded down, from an unknown number of walks.

    4 standard deviations of a rate of 3.15 % over 100,000 episodes are 0.0022.
    """
    theory = hit_rate(size=5, steps=8) ** 2
    assert theory == pytest.approx(0.0315, abs=5e-5)
    returns, success = play("KeyToDoor", 100_000, random_policy(4))
    assert abs(returns.mean() - theory) < 0.0022
    assert success.mean() == returns.mean()


def test_key_to_door_pays_once_at_the_door_and_only_with_the_key() -> None:
    """Two copies make the same moves; the key lies beside the start of the first, far from that of the second."""
    rules = KeyToDoor()
    beside, far = 0.0, 0.99
    state = rules.start(np.array([[0.0, 0.0, 0.0, beside, beside], [0.0, 0.0, 0.0, far, beside]]))
    rewards = []
    for t in range(24):
        outcome = rules.step(state, np.full(2, RIGHT if t % 2 == 0 else LEFT))
        state = outcome.state
        rewards.append(outcome.reward)
        assert (outcome.terminated == (t == 23)).all()
    np.testing.assert_array_equal(np.sum(rewards, 0), [1, 0])
    assert rewards[16][0] == 1  # the door is stood on at steps 16, 18, 20 and 22
    np.testing.assert_array_equal(outcome.success, [True, False])


def test_key_to_door_does_not_show_in_later_rooms_whether_the_key_is_held() -> None:
    """Two runs of one seed, with and without the key, look the same from the second room on."""
    views = []
    for seek in (True, False):
        env = make_vec("KeyToDoor", 50)
        observation, _ = env.reset(seed=0)
        for t in range(8):
            action = object_seeker(observation) if seek else np.full(50, t % 2 * 2)
            observation, *_ = env.step(action)
        rows = [observation]
        for _ in range(15):
            rows.append(env.step(np.full(50, UP))[0])
        views.append(np.stack(rows))
    np.testing.assert_array_equal(views[0], views[1])


def test_a_taken_key_leaves_the_view() -> None:
    env = make_vec("KeyToDoor", 50)
    observation, _ = env.reset(seed=0)
    assert (observation[:, 3] == 1).all()
    for _ in range(7):
        observation, *_ = env.step(object_seeker(observation))
    taken = observation[:, 3] == 0
    assert taken.mean() > 0.9  # 8 steps reach every key, 7 all but those in the opposite corner
    assert (observation[taken, 4:] == 0).all()


@pytest.mark.parametrize("form", [make, lambda task, **options: make_vec(task, 2, **options)])
@pytest.mark.parametrize(
    ("task", "options", "words"),
    [
        ("CueRecall", {"delay": -1}, "delay must be a whole number of at least 0"),
        ("CueRecall", {"cues": 1}, "cues must be a whole number of at least 2"),
        ("CueRecall", {"delays": 3}, "unknown setting delays; did you mean 'delay'"),
        ("PassiveTMaze", {"corridor": 0}, "corridor"),
        ("ActiveTMaze", {"corridor": 2.5}, "corridor"),
        ("CueRecall", {"shortest_delay": 17}, "delay must be a whole number of at least 17, got 16"),
        ("PassiveTMaze", {"shortest_corridor": 0}, "shortest_corridor must be a whole number of at least 1"),
        ("PassiveTMaze", {"corridor": 9, "shortest_corridor": 10}, "corridor must be a whole number of at least 10"),
        ("KeyToDoor", {"size": 1}, "size"),
        ("KeyToDoor", {"phase_steps": 0}, "phase_steps"),
    ],
)
def test_impossible_options_are_refused(
    form: Callable[..., Any], task: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        form(task, **options)


def test_an_unknown_autoreset_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'SameStep'"):
        make_vec("CueRecall", 2, autoreset_mode="SameSteps")


def test_wrong_use_of_the_vector_form_is_refused() -> None:
    env = make_vec("CueRecall", 2, delay=0, autoreset_mode="Disabled")
    with pytest.raises(ResetNeeded, match="before the first step"):
        env.step(np.zeros(2, np.int64))
    with pytest.raises(ResetNeeded, match="all copies"):
        env.reset(options={"reset_mask": np.array([True, False])})
    env.reset(seed=0)
    with pytest.raises(InvalidAction, match=r"0\.\.1"):
        env.step(np.array([0, 2]))
    with pytest.raises(InvalidAction, match="shape"):
        env.step(np.zeros(3, np.int64))
    with pytest.raises(ConfigError, match="reset_mask"):
        env.reset(options={"reset_mask": np.array([False, False])})
    with pytest.raises(ConfigError, match="one seed per copy"):
        env.reset(seed=[1, 2, 3])  # type: ignore[arg-type]  # a list is what SyncVectorEnv takes as well
    for _ in range(2):
        env.step(np.zeros(2, np.int64))
    with pytest.raises(ResetNeeded, match="reset_mask"):
        env.step(np.zeros(2, np.int64))
