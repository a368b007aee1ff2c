"""Environments in tensors against their twins in numpy: the same draws and actions, the same rows."""

import re
from collections.abc import Callable
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from rltransformers.core.errors import DataError
from rltransformers.envs import GymnasiumVecEnv
from rltransformers.envs.memory_rules.interface import random_words
from rltransformers.envs.tensors import Outcome, TensorVecEnv, streams
from rltransformers.envs.tensors.tasks import (
    ActiveTMaze,
    CartPole,
    CueRecall,
    EndlessTMaze,
    PassiveTMaze,
    Pendulum,
    RepeatPrevious,
)
from rltransformers.envs.vector import with_statistics
from tests.envs.tensors.twins import Seeded, program, spy_episodes

N, SEED = 5, 11
MEMORY: dict[str, tuple[type[TensorVecEnv], list[dict[str, Any]]]] = {
    "CueRecall": (CueRecall, [{"delay": 3, "cues": 4, "shortest_delay": 1}, {"delay": 2}]),
    "PassiveTMaze": (PassiveTMaze, [{"corridor": 4, "shortest_corridor": 1}, {"corridor": 3}]),
    "ActiveTMaze": (ActiveTMaze, [{"corridor": 3}]),
    "EndlessTMaze": (
        EndlessTMaze,
        [{"corridor": 4, "shortest_corridor": 2, "junctions": 3}, {"shortest_corridor": None}],
    ),
}


def copies(make: Callable[[], gymnasium.Env[Any, Any]]) -> VecEnv:
    """Single environments that draw as tensor environments with the seeds from ``SEED`` on."""
    return DummyVecEnv([lambda row=row: Monitor(Seeded(make(), SEED + row)) for row in range(N)])  # type: ignore[misc]


def compare(ours: TensorVecEnv, twin: VecEnv, steps: int, action: Callable[[], Any], tolerance: float = 0.0) -> None:
    """Step both with the same actions: observations, rewards, ends, last observations, returns, lengths, successes."""

    def same(a: Any, b: Any) -> None:
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)
        assert np.asarray(a).dtype == np.asarray(b).dtype

    ours.seed(SEED)
    same(ours.reset(), twin.reset())
    for _ in range(steps):
        actions = action()
        (seen, rewards, ends, infos), (other, earned, over, told) = ours.step(actions), twin.step(actions)
        same(seen, other)
        np.testing.assert_allclose(rewards, earned, rtol=1e-6, atol=1e-7)  # one is summed up in float32
        assert (ends == over).all()
        for mine, theirs in zip(infos, told, strict=True):
            assert mine.get("TimeLimit.truncated") == theirs.get("TimeLimit.truncated")
            assert ("terminal_observation" in mine) == ("terminal_observation" in theirs)
            if "episode" in mine:
                same(mine["terminal_observation"], theirs["terminal_observation"])
                assert mine["episode"]["l"] == theirs["episode"]["l"]
                assert mine["episode"]["r"] == pytest.approx(theirs["episode"]["r"], abs=1e-4)
                assert mine.get("is_success") == theirs.get("is_success")
    assert (spy_episodes(ours) > 2).all(), "too short to see resets"


@pytest.mark.parametrize(
    ("task", "options"), [(task, options) for task, (_, cases) in MEMORY.items() for options in cases]
)
def test_memory_tasks_equal_their_twins_to_the_bit(task: str, options: dict[str, Any]) -> None:
    ours: Any = MEMORY[task][0](N, device="cpu", **options)
    twin = with_statistics(GymnasiumVecEnv(program(task, N, SEED, **options)))
    count, generator = int(ours.rules.actions), np.random.default_rng(0)
    right = 0.6 if task.endswith("Maze") else 0.0  # random actions alone would never leave the first cells

    def action() -> np.ndarray:
        drawn = generator.integers(count, size=N)
        return np.where(generator.random(N) < right, 0, drawn)

    compare(ours, twin, 90, action)


def test_cart_pole_equals_that_of_gymnasium() -> None:
    generator = np.random.default_rng(1)
    make = lambda: gymnasium.make("CartPole-v1", max_episode_steps=12)  # noqa: E731
    compare(CartPole(N, max_episode_steps=12), copies(make), 80, lambda: generator.integers(2, size=N), 1e-6)


def test_cart_pole_pays_as_gymnasium_does_after_sutton_and_barto() -> None:
    make = lambda: gymnasium.make("CartPole-v1", sutton_barto_reward=True)  # noqa: E731
    compare(CartPole(N, sutton_barto_reward=True), copies(make), 60, lambda: np.ones(N, np.int64), 1e-6)


def test_pendulum_equals_that_of_gymnasium() -> None:
    generator = np.random.default_rng(2)
    make = lambda: gymnasium.make("Pendulum-v1", max_episode_steps=30, g=9.0)  # noqa: E731
    ours = Pendulum(N, max_episode_steps=30, g=9.0)
    compare(ours, copies(make), 100, lambda: generator.uniform(-2, 2, (N, 1)).astype(np.float32), 1e-6)


@pytest.mark.third_party
@pytest.mark.parametrize(("num_decks", "k"), [(1, 4), (2, 32)])
def test_repeat_previous_equals_that_of_popgym(num_decks: int, k: int) -> None:
    popgym = pytest.importorskip("popgym.envs.repeat_previous")
    generator = np.random.default_rng(3)
    twin = copies(lambda: popgym.RepeatPrevious(num_decks=num_decks, k=k))
    ours = RepeatPrevious(N, num_decks=num_decks, k=k)
    compare(ours, twin, 2 * 52 * num_decks + 60, lambda: generator.integers(4, size=N))


def test_repeat_previous_deals_every_suit_of_a_deck_and_pays_for_the_right_one() -> None:
    env = RepeatPrevious(3, device="cpu", k=2)
    env.seed(0)
    seen = [env.reset_tensors()[""]]
    returns = torch.zeros(3)
    for _ in range(51):
        step = env.step_tensors(seen[-2] if len(seen) > 1 else seen[-1])  # the card before the present one
        seen.append(step.observations[""] if not bool(step.ended.any()) else step.last_observations[""])  # type: ignore[index]
        returns += step.rewards
    assert bool(step.ended.all())
    counts = torch.stack(seen, 1)
    assert all((counts == suit).sum(1).tolist() == [13, 13, 13] for suit in range(4))
    torch.testing.assert_close(returns, torch.ones(3))


def test_words_are_those_of_the_rules_in_numpy() -> None:
    generator = np.random.default_rng(0)
    seed, place = generator.integers(-(2**63), 2**63, (2, 1000))
    ours = streams.random_words(torch.tensor(seed), torch.tensor(place)).numpy()
    assert (ours.view(np.uint64) == random_words(seed, place)).all()
    below = streams.random_below(torch.tensor(ours), 2**31 - 1).numpy()
    assert (below == ours.view(np.uint64) % np.uint64(2**31 - 1)).all()


def test_episodes_depend_on_the_seed_of_their_environment_alone() -> None:
    few: Any = CartPole(2, device="cpu")
    many: Any = CartPole(4, device="cpu")
    for env in few, many:
        env.seed(3)
    assert (few.reset() == many.reset()[:2]).all()
    zero = np.zeros(2, np.int64)
    other = np.array([0, 0, 1, 1])
    for _ in range(30):  # of different lengths: resets of the others shift nothing
        assert (few.step(zero)[0] == many.step(other)[0][:2]).all()


class Shapes(CartPole):
    """What ``begin`` returns, or one value of what ``advance`` returns, is of another shape or type."""

    wrong: tuple[str, Any]

    def advance(self, actions: torch.Tensor) -> Outcome:
        name, value = self.wrong
        outcome = super().advance(actions)
        return outcome if name == "begin" else outcome._replace(**{name: value})

    def begin(self, mask: torch.Tensor) -> Any:
        observations, (name, value) = super().begin(mask), self.wrong
        return value if name == "begin" else observations


@pytest.mark.parametrize(
    ("name", "value", "due", "got"),
    [
        (
            "begin",
            torch.zeros(N, 1),
            "observation must be numbers [N, 4]",
            "begin returned torch.float32 [5, 1]; r",
        ),
        ("observations", torch.zeros(1, 4), "observation must be numbers [N, 4]", "torch.float32 [1, 4] in step 1 of"),
        ("observations", np.zeros((N, 4)), "observation must be numbers [N, 4]", "advance returned a ndarray in step"),
        ("observations", torch.zeros(N, 4).bfloat16(), "observation must be numbers [N, 4]", "torch.bfloat16 [5, 4] "),
        (
            "rewards",
            torch.ones(()),
            "rewards must be numbers [N]",
            "torch.float32 [] in step 1 of the episode",
        ),
        ("rewards", torch.ones(N, 1), "rewards must be numbers [N]", "torch.float32 [5, 1]"),
        ("terminated", torch.zeros(N).long(), "terminated must be bool [N]", "torch.int64 [5]"),
        ("truncated", torch.zeros(N, 1) > 0, "truncated must be bool [N]", "torch.bool [5, 1]"),
        ("successes", torch.zeros(N), "successes must be bool [N]", "torch.float32 [5] in step 1 of the episode of"),
    ],
)
def test_what_has_another_shape_or_type_is_refused(name: str, value: Any, due: str, got: str) -> None:
    env = Shapes(N, device="cpu")
    env.wrong = name, value
    with pytest.raises(DataError, match=re.escape(f"{due} for N = 5 environments, ") + ".*" + re.escape(got)):
        env.reset()
        env.step(np.zeros(N, np.int64))


def test_a_state_goes_on_as_if_it_had_not_stopped() -> None:
    first, second = (cast(Any, CartPole(3, device="cpu", max_episode_steps=7)) for _ in range(2))
    first.seed(0)
    first.reset()
    for _ in range(10):
        first.step(np.array([0, 1, 0]))
    state = first.state_dict()
    assert state is not None
    second.load_state_dict(state)
    for _ in range(20):
        a, b = first.step(np.array([1, 1, 0])), second.step(np.array([1, 1, 0]))
        assert (a[0] == b[0]).all()
        assert str(a[3]) == str(b[3])
