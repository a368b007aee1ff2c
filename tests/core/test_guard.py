"""What an environment returns or raises wrongly stops the run, with the place where it came from."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from rltransformers.core.checked_env import CheckedEnv
from rltransformers.core.errors import DataError
from rltransformers.core.values import all_finite
from rltransformers.envs import FiniteVecEnv, make_vec_env, make_vector_env
from tests.envs.faulty import OBSERVATIONS, RESULTS


class Breaking(gymnasium.Env[Any, Any]):
    """Shows a bad number at one step, in the observation, in the reward, or only in the terminal observation."""

    def __init__(self, where: str = "nowhere", step: int = 2, bad: float = np.nan) -> None:
        floats = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.observation_space = spaces.Dict({"count": spaces.Discrete(9), "floats": floats})
        self.action_space = spaces.Discrete(2)
        self.where, self.at, self.bad, self.t = where, step, bad, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.t = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        reward = self.bad if self.where == "reward" and self.t == self.at else 0.0
        return self._observation(), reward, self.where == "end" and self.t == self.at, False, {}

    def _observation(self) -> Any:
        floats = np.zeros(3, np.float32)
        if self.where in ("observation", "end") and self.t == self.at:
            floats[1] = self.bad
        return {"count": self.t, "floats": floats}


def guarded(**options: Any) -> FiniteVecEnv:
    """Three copies; only the last is broken."""
    return FiniteVecEnv(DummyVecEnv([Breaking, Breaking, lambda: Breaking(**options)]))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"where": "observation"}, r"^observation 'floats' of environment 2 in step 2 is nan at entry \[1\]"),
        ({"where": "observation", "bad": np.inf}, r"observation 'floats' of environment 2 in step 2 is inf"),
        ({"where": "reward"}, "reward of environment 2 is nan in step 2"),
        ({"where": "reward", "bad": -np.inf, "step": 1}, "reward of environment 2 is -inf in step 1"),
        ({"where": "end"}, r"terminal observation 'floats' of environment 2 in step 2 is nan at entry \[1\]"),
        ({"where": "observation", "step": 0}, r"observation 'floats' of environment 2 in step 0"),
    ],
)
def test_a_bad_number_is_named_with_its_environment_and_step(options: dict[str, Any], words: str) -> None:
    env = guarded(**options)
    with pytest.raises(DataError, match=words):
        env.reset()
        for _ in range(5):
            env.step(np.zeros(3, np.int64))


def test_finite_numbers_pass_unchanged() -> None:
    plain, watched = DummyVecEnv([Breaking] * 2), FiniteVecEnv(DummyVecEnv([Breaking] * 2))
    np.testing.assert_equal(watched.reset(), plain.reset())
    for _ in range(3):
        np.testing.assert_equal(watched.step(np.zeros(2, np.int64)), plain.step(np.zeros(2, np.int64)))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_finite_is_what_is_finite_in_float32(dtype: Any) -> None:
    largest = float(np.finfo(np.float32).max)
    values = [0.0, -1.5, np.nan, np.inf, -np.inf]
    if dtype is np.float64:  # the last but one is rounded down to the largest, the last is rounded up to infinity
        values += [largest, -largest, largest * (1 + 2.0**-26), 1e39]
    for value in values:
        with np.errstate(over="ignore"):
            expected = bool(np.isfinite(np.float32(value)))
        assert all_finite(np.array([[1.0, value]], dtype)) == expected


def cut(observation: np.ndarray) -> np.ndarray:
    return observation[:1]


def test_a_bare_observation_of_another_shape_is_refused_before_it_is_broadcast() -> None:
    pendulum = gymnasium.make("Pendulum-v1", disable_env_checker=True)
    env = CheckedEnv(gymnasium.wrappers.TransformObservation(pendulum, cut, pendulum.observation_space), 4)
    with pytest.raises(
        DataError, match=r"observation of environment 4 in step \d .* has shape \(1,\), the space \(3,\)"
    ):
        env.reset()
    with pytest.raises(
        DataError, match=r"observation of environment 4 in step \d .* has shape \(1,\), the space \(3,\)"
    ):
        env.step(np.zeros(1, np.float32))


def test_bare_observations_are_watched_as_well() -> None:
    env = FiniteVecEnv(DummyVecEnv([lambda: gymnasium.make("Pendulum-v1", disable_env_checker=True)]))
    env.seed(0)
    env.reset()
    env.env_method("set_wrapper_attr", "state", np.array([np.nan, 0.0]))
    with pytest.raises(DataError, match="reward of environment 0 is nan in step 1"):
        env.step(np.zeros((1, 1), np.float32))


def test_make_vec_env_is_guarded() -> None:
    inner: Any = make_vec_env("CartPole-v1")
    while not isinstance(inner, FiniteVecEnv):
        inner = inner.venv


WORDS = (
    {fault: f"observation {leaf!r} of environment 1 in step 2" for fault, (leaf, _) in OBSERVATIONS.items()}
    | {
        fault: f"{('', 'reward', 'terminated', 'truncated')[i]} of environment 1 .* in step 2"
        for fault, (i, _) in RESULTS.items()
    }
    | {
        "missing": "observation of environment 1 in step 2 .*the key 'count' is missing",
        "raises": "environment 1 raised ZeroDivisionError in step 2 of its episode 0: the pole broke",
        "too few": "environment 1 (raised ValueError|returned .*) in step 2 .*step returns five",
    }
)
gymnasium.register("test/Wrong-v0", entry_point="tests.envs.faulty:Wrong")


def stepped(env: Any) -> None:
    """Three steps of a Stable-Baselines3 vector environment; copy 1 has seed 11."""
    env.seed(10)
    try:
        env.reset()
        for _ in range(3):
            env.step(np.zeros(3, np.int64))
    finally:
        env.close()


def in_one_process(**options: Any) -> None:
    stepped(make_vec_env("test/Wrong-v0", 3, env_kwargs=options))


def in_three_processes(**options: Any) -> None:
    stepped(make_vec_env("test/Wrong-v0", 3, env_kwargs=options, processes=True))


def in_evaluation(**options: Any) -> None:
    envs = make_vector_env("test/Wrong-v0", 3, env_kwargs=options)
    envs.reset(seed=10)
    for _ in range(3):
        envs.step(np.zeros(3, np.int64))


@pytest.mark.parametrize("run", [in_one_process, in_evaluation])
@pytest.mark.parametrize("fault", WORDS)
def test_a_fault_of_one_copy_is_named_with_copy_and_step(fault: str, run: Callable[..., None]) -> None:
    with pytest.raises(DataError, match=WORDS[fault]) as caught:
        run(fault=fault)
    if fault == "raises":
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
    run(fault="nothing")


def test_a_fault_at_the_reset_is_in_step_0() -> None:
    for run in (in_one_process, in_evaluation):
        with pytest.raises(DataError, match="environment 1 raised ZeroDivisionError in step 0 of its episode"):
            run(fault="raises", at=0)


SEEN = np.zeros(2, np.float32)
FIVE: Any = (SEEN, 1.0, False, False, {})


class Returning(gymnasium.Env[Any, Any]):
    """Returns what it was given."""

    observation_space, action_space = spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(2)

    def __init__(self, at_reset: Any, at_step: Any) -> None:
        self.at_reset, self.at_step = at_reset, at_step

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.at_reset

    def step(self, action: Any) -> Any:
        return self.at_step


@pytest.mark.parametrize("wrap", [lambda env: env, Monitor, lambda env: TimeLimit(env, 9)])
@pytest.mark.parametrize(
    ("at_reset", "at_step", "words"),
    [
        (SEEN, FIVE, "reset of environment 0 returned ndarray in step 0 .*reset returns two values"),
        ((SEEN, 1.0), FIVE, "reset of environment 0 returned .*'float'.* in step 0 .*reset returns two values"),
        ((SEEN, {}), (SEEN, 1.0, False, {}), "environment 0 .* in step 1 .*step returns five: .*shimmy"),
        ((SEEN, {}), (SEEN, np.ones(1), False, False, {}), r"reward of environment 0 has shape \(1,\).* in step 1"),
        ((SEEN, {}), (SEEN, [1.0], False, False, {}), r"reward of environment 0 has shape \(1,\).* in step 1"),
        ((SEEN, {}), (SEEN, None, False, False, {}), r"reward of environment 0 has dtype object.* in step 1"),
    ],
)
def test_results_of_another_number_or_shape_are_told_what_is_due(
    at_reset: Any, at_step: Any, words: str, wrap: Callable[[Any], Any]
) -> None:
    env = CheckedEnv(wrap(Returning(at_reset, at_step)), 0)
    with pytest.raises(DataError, match=words):
        env.reset()
        env.step(0)


def test_a_reset_without_the_keywords_of_gymnasium_is_told_what_is_due() -> None:
    class OldReset(Returning):
        def reset(self) -> Any:  # type: ignore[override]  # as in the old gym
            return SEEN

    with pytest.raises(DataError, match=r"keyword argument 'seed'; .*reset takes the keywords seed and options"):
        CheckedEnv(OldReset(SEEN, FIVE), 0).reset(seed=0)


@pytest.mark.slow  # starts processes
@pytest.mark.parametrize(("fault", "at"), [("raises", 0), ("no reward", 2)])
def test_a_fault_in_a_process_of_its_own_is_named_too(fault: str, at: int) -> None:
    words = WORDS[fault].replace("in step 2", f"in step {at}")
    with pytest.raises(DataError, match=words):
        in_three_processes(fault=fault, at=at)


@pytest.mark.slow  # starts processes
def test_a_process_that_dies_is_named_and_nothing_waits_for_it() -> None:
    with pytest.raises(DataError, match=r"the process of environment 1 ended in step 2 \(exit code 7"):
        in_three_processes(fault="exit")


class Cut(gymnasium.Env[Any, Any]):
    """Shows the number of the step, in the same arrays every time; ends in its second."""

    def __init__(self, terminates: bool) -> None:
        number = spaces.Box(0.0, 9.0, (1,))
        self.observation_space = spaces.Dict({"array": number, "pair": spaces.Tuple([number, spaces.Discrete(9)])})
        self.action_space = spaces.Discrete(2)
        self.array, self.t, self.terminates = np.zeros(1, np.float32), 0, terminates

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._shown(0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        ends = self.t + 1 == 2
        return self._shown(self.t + 1), 0.0, ends and self.terminates, ends and not self.terminates, {}

    def _shown(self, t: int) -> Any:
        self.t, self.array[0] = t, t
        return {"array": self.array, "pair": (self.array, t)}


@pytest.mark.parametrize("terminates", [False, True])
def test_the_last_observation_of_an_episode_outlives_the_next_reset(terminates: bool) -> None:
    env = CheckedEnv(Cut(terminates), 0)
    env.reset()
    between, last = (env.step(0)[0] for _ in range(2))
    env.reset()
    assert between["array"] is env.unwrapped.array  # type: ignore[attr-defined]  # what goes on is not copied
    assert (last["array"].tolist(), last["pair"][0].tolist(), last["pair"][1]) == ([2.0], [2.0], 2)
