"""The vector adaptor: three autoreset modes, one sequence of rows, equal to Stable-Baselines3's own DummyVecEnv."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecMonitor

from rltransformers.core.errors import ConfigError
from rltransformers.core.guard import reset_rows
from rltransformers.envs import FlatDict, GymnasiumVecEnv, make_vec_env
from rltransformers.envs.vector import SerialVecEnv, supports_partial_reset, with_statistics

MODES = tuple(AutoresetMode)


class Awkward(gymnasium.Env[Any, Any]):
    """Nested observations, ends of both kinds at seeded lengths, infos of several types."""

    def __init__(self) -> None:
        inner = spaces.Dict({"a": spaces.Box(-np.inf, np.inf, (2,), np.float64), "b": spaces.Discrete(50)})
        self.observation_space = spaces.Tuple([inner, spaces.MultiBinary(3)])
        self.action_space = spaces.MultiDiscrete([3, 2])
        self.array, self.bits = np.zeros(2), np.zeros(3, np.int8)
        self.t = self.length = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.length = 0, int(self.np_random.integers(2, 6))
        self.array[:] = self.np_random.normal(size=2)
        return self._observation(), {"length": self.length}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.array += action
        self.bits[self.t % 3] ^= 1
        ended = self.t >= self.length
        terminated, truncated = ended and self.length % 2 == 0, ended and self.length != 4
        info = {"array": self.array.copy(), "words": f"step {self.t}", "is_success": bool(terminated)}
        return self._observation(), float(self.array[0]), terminated, truncated, info

    def _observation(self) -> Any:
        return {"a": self.array.copy(), "b": self.t}, self.bits.copy()


def cart_pole() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1", max_episode_steps=13)


def key_to_door() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("rltransformers/KeyToDoor-v0", phase_steps=2)


def our_program(fns: list[Callable[[], Any]], autoreset_mode: AutoresetMode) -> VectorEnv[Any, Any, Any]:
    return gymnasium.make_vec(
        "rltransformers/KeyToDoor-v0", num_envs=len(fns), autoreset_mode=autoreset_mode, phase_steps=2
    )


def rows(venv: VecEnv, steps: int = 40) -> list[Any]:
    """Everything that a learner sees, under seeded actions."""
    venv.seed(3)
    venv.action_space.seed(7)
    seen: list[Any] = [venv.reset(), [dict(info) for info in venv.reset_infos]]
    for _ in range(steps):
        row = venv.step(np.array([venv.action_space.sample() for _ in range(venv.num_envs)]))
        seen.append((*row, [dict(info) for info in venv.reset_infos], reset_rows(venv)))
    venv.close()
    return seen


def without_time(seen: list[Any]) -> list[Any]:
    """Without the clock in the episode statistics."""
    for row in seen[2:]:
        for info in row[3]:
            info.get("episode", {}).pop("t", None)
    return seen


def frozen_lake() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("FrozenLake-v1", max_episode_steps=9)


def flat_awkward() -> gymnasium.Env[Any, Any]:
    return Monitor(FlatDict(Awkward()))


@pytest.mark.parametrize("make", [cart_pole, key_to_door, frozen_lake, flat_awkward])
def test_the_serial_environment_returns_what_that_of_stable_baselines3_does(make: Callable[[], Any]) -> None:
    got, expected = (without_time(rows(kind([make] * 3))) for kind in (SerialVecEnv, DummyVecEnv))
    np.testing.assert_equal(got, expected)
    assert [str(row) for row in got] == [str(row) for row in expected]  # types too


class Notebook(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Writes into one info and one observation for ever."""

    info: dict[str, Any] = {}
    pages: list[int] = []

    def step(self, action: Any) -> Any:
        observation, *results, _ = self.env.step(action)
        self.pages.append(len(self.pages))
        self.info |= {"pages": self.pages, "array": self.array}
        self.array[:] = observation
        return self.array, *results, self.info

    array = np.zeros(4, np.float32)


def test_what_a_serial_environment_returned_stays_as_it_was() -> None:
    env = SerialVecEnv([lambda: Notebook(cart_pole())])
    env.reset()
    observations, rewards, dones, infos = env.step(np.zeros(1, np.int64))
    before = deepcopy((observations, rewards, dones, infos))
    assert infos[0]["pages"] == [0]
    for _ in range(12):
        env.step(np.zeros(1, np.int64))
    np.testing.assert_equal((observations, rewards, dones, infos), before)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("make", "vectorizer"),
    [(make, kind) for make in (cart_pole, key_to_door, Awkward) for kind in (SyncVectorEnv, AsyncVectorEnv)]
    + [(key_to_door, our_program)],
)
def test_every_mode_gives_the_rows_of_dummy_vec_env(
    make: Callable[[], Any], vectorizer: Callable[..., Any], mode: AutoresetMode
) -> None:
    """Observations, rewards, dones, terminal observations, truncation flags, returns, lengths, infos, reset infos."""
    fns = [make] * 2
    flat: list[Callable[[], Any]] = [lambda: FlatDict(Awkward())] * 2 if make is Awkward else fns
    expected = without_time(rows(VecMonitor(DummyVecEnv(flat))))
    got = without_time(rows(VecMonitor(GymnasiumVecEnv(vectorizer(fns, autoreset_mode=mode)))))
    ends = sum(row[2].sum() for row in expected[2:])
    assert ends >= 4
    np.testing.assert_equal(got, expected)
    for row in got[2:]:
        assert row[1].dtype == np.float32 and row[2].dtype == np.bool_


@pytest.mark.parametrize("mode", MODES)
def test_truncation_is_flagged_only_where_the_episode_did_not_terminate(mode: AutoresetMode) -> None:
    seen = rows(GymnasiumVecEnv(SyncVectorEnv([cart_pole] * 3, autoreset_mode=mode)), steps=120)
    flags = [info["TimeLimit.truncated"] for row in seen[2:] for info in row[3]]
    dones = [done for row in seen[2:] for done in row[2]]
    assert any(flags) and not any(flag and not done for flag, done in zip(flags, dones, strict=True))
    assert sum(flags) < sum(dones)


class WholeResetOnly(SyncVectorEnv):
    """A NEXT_STEP environment of a third party: it knows no partial reset."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        assert not options, "the adaptor must not ask for a partial reset here"
        return super().reset(seed=seed)


def test_an_environment_without_partial_reset_marks_its_reset_rows() -> None:
    """With those rows taken out, each copy shows the rows of DummyVecEnv; returns are the same with them in."""
    wrapped = RecordEpisodeStatistics(WholeResetOnly([cart_pole] * 3))
    assert not supports_partial_reset(wrapped)
    got, expected = rows(GymnasiumVecEnv(wrapped), 90), rows(DummyVecEnv([cart_pole] * 3), 90)
    for i in range(3):
        marked = [bool(row[5][i]) for row in got[2:]]
        ended = [bool(row[2][i]) for row in got[2:]]
        assert sum(marked) >= 3
        assert marked == [False, *ended[:-1]]
        for row, is_marked, terminal in zip(got[2:], marked, ended, strict=True):
            if is_marked:
                assert row[1][i] == 0 and not row[2][i]
            if terminal:
                np.testing.assert_array_equal(row[3][i]["terminal_observation"], row[0][i])
    first_end = min(t for t, row in enumerate(got[2:]) if row[2].any())
    for row, other in zip(got[2 : 2 + first_end], expected[2:], strict=False):
        np.testing.assert_array_equal(row[0], other[0])


def test_reset_rows_leave_returns_and_shift_nothing_else() -> None:
    """One copy that takes the same action always: its episodes do not depend on how rows are counted."""

    def returns(venv: VecEnv, monitor: Callable[[VecEnv], VecEnv]) -> tuple[list[float], list[int]]:
        venv = monitor(venv)
        venv.seed(0)
        venv.reset()
        episodes: list[dict[str, Any]] = []
        while len(episodes) < 6:
            *_, infos = venv.step(np.zeros(1, np.int64))
            episodes += [info["episode"] for info in infos if "episode" in info]
        return [float(episode["r"]) for episode in episodes], [int(episode["l"]) for episode in episodes]

    def whole() -> GymnasiumVecEnv:
        return GymnasiumVecEnv(RecordEpisodeStatistics(WholeResetOnly([cart_pole])))

    expected = returns(DummyVecEnv([cart_pole]), VecMonitor)
    assert returns(whole(), with_statistics) == expected
    assert returns(whole(), VecMonitor) == (expected[0], [expected[1][0]] + [length + 1 for length in expected[1][1:]])


def test_statistics_of_a_monitor_keep_its_keywords() -> None:
    def monitored(**_: Any) -> Monitor:
        return Monitor(Awkward(), info_keywords=("words",))

    for env in (make_vec_env(monitored, 2), with_statistics(GymnasiumVecEnv(SyncVectorEnv([monitored] * 2)))):
        env.reset()
        steps = [env.step(np.zeros((2, 2), np.int64))[3] for _ in range(12)]
        records = [info["episode"] for infos in steps for info in infos if "episode" in info]
        assert records and all(record["words"] == f"step {record['l']}" for record in records)


def test_a_wrapped_environment_that_resets_in_the_step_has_no_reset_rows() -> None:
    env = GymnasiumVecEnv(
        RecordEpisodeStatistics(SyncVectorEnv([cart_pole] * 2, autoreset_mode=AutoresetMode.SAME_STEP))
    )
    for *_, done, _infos, marked in rows(env, 60)[2:]:
        assert not any(marked), done


def test_partial_resets_are_trusted_only_where_they_work() -> None:
    sync = SyncVectorEnv([cart_pole] * 2)
    assert supports_partial_reset(sync)
    assert not supports_partial_reset(RecordEpisodeStatistics(sync))
    assert supports_partial_reset(SyncVectorEnv([cart_pole] * 2, autoreset_mode=AutoresetMode.DISABLED))
    for shared_memory in (True, False):
        env = AsyncVectorEnv([cart_pole], shared_memory=shared_memory)
        assert supports_partial_reset(env) is shared_memory
        env.close()
    third = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="vector_entry_point")
    assert not supports_partial_reset(third)
    third.metadata = {**third.metadata, "reset_mask": True}
    assert supports_partial_reset(third)


def test_gymnasiums_own_numpy_cart_pole_runs() -> None:
    third = gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point")
    seen = rows(GymnasiumVecEnv(third), 80)
    assert any(row[5].any() for row in seen[2:])


def test_observations_are_copies() -> None:
    env = GymnasiumVecEnv(SyncVectorEnv([cart_pole] * 2, copy=False))
    first = env.reset()
    assert isinstance(first, np.ndarray)
    kept = first.copy()
    env.step(np.zeros(2, np.int64))
    np.testing.assert_array_equal(first, kept)


def test_the_action_type_is_that_of_a_single_environment() -> None:
    """Gymnasium batches MultiDiscrete actions into an integer Box and Discrete ones into a MultiDiscrete."""
    assert GymnasiumVecEnv(SyncVectorEnv([Awkward] * 2)).action_space == spaces.MultiDiscrete([3, 2])
    assert GymnasiumVecEnv(SyncVectorEnv([cart_pole] * 2)).action_space == spaces.Discrete(2)


def test_attributes_and_methods_of_sub_environments_are_within_reach() -> None:
    env = GymnasiumVecEnv(SyncVectorEnv([Awkward] * 2))
    assert env.get_attr("t") == [0, 0] and env.get_attr("t", indices=1) == [0]
    env.set_attr("t", 5)
    assert env.get_attr("t") == [5, 5]
    assert env.env_method("has_wrapper_attr", "length") == [True, True]
    assert env.env_is_wrapped(FlatDict) == [False, False]
    assert GymnasiumVecEnv(SyncVectorEnv([lambda: FlatDict(Awkward())])).env_is_wrapped(FlatDict) == [True]
    with pytest.raises(ConfigError, match="leave out indices"):
        env.set_attr("t", 5, indices=[0])
    ours = GymnasiumVecEnv(our_program([key_to_door] * 2, AutoresetMode.SAME_STEP))
    assert [spec.id for spec in ours.get_attr("spec")] == ["rltransformers/KeyToDoor-v0"] * 2
    assert ours.env_is_wrapped(FlatDict) == [False, False]
    with pytest.raises(ConfigError, match="no sub-environments"):
        ours.env_method("render")


def test_an_environment_that_does_not_say_how_it_resets_is_refused() -> None:
    env = SyncVectorEnv([cart_pole])
    env.metadata = {}
    with pytest.raises(ConfigError, match="does not say how it resets"):
        GymnasiumVecEnv(env)


class Chatty(Awkward):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict({"said": spaces.Text(5)})


def test_an_unsupported_observation_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="'said' space is Text"):
        GymnasiumVecEnv(SyncVectorEnv([Chatty]))


def test_different_reset_options_per_sub_environment_are_refused() -> None:
    env = GymnasiumVecEnv(SyncVectorEnv([cart_pole] * 2))
    env.set_options([{"low": 0.0}, {"low": 0.1}])
    with pytest.raises(ConfigError, match="same reset options"):
        env.reset()
