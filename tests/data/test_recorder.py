"""Recording gives what stepping by hand gives, in every kind of vector environment."""

import itertools
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeAwareObservation, TimeLimit
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from rltransformers.core.errors import ConfigError, DataError
from rltransformers.core.seeding import numpy_stream
from rltransformers.data import ObservationView, load_trajectories, mixture, record, write_minari
from rltransformers.envs import GymnasiumVecEnv, make_vec_env
from tests.data.coded import code

LENGTHS = (3, 7, 1, 5)


class Coded(gym.Env[Any, Any]):
    """Episode k of environment i takes LENGTHS[(k + i) % 4] steps; numbers tell environment, episode and step.

    Odd episodes terminate, even ones are truncated.
    """

    observation_space = spaces.Dict(
        {"code": spaces.Box(-np.inf, np.inf, (3,), np.float64), "parity": spaces.Discrete(2)}
    )
    action_space = spaces.Discrete(50, start=-3)

    def __init__(self, index: int = 0, ends: bool = True) -> None:
        self.index, self.ends, self.episode = index, ends, -1

    def _observation(self) -> dict[str, Any]:
        number = code(100 * self.index + self.episode, self.step_count)
        return {"code": np.array([number, -number, 7.0]), "parity": self.step_count % 2}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.step_count = self.episode + 1, 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.step_count += 1
        end = self.ends and self.step_count == LENGTHS[(self.episode + self.index) % 4]
        odd = self.episode % 2 == 1
        return self._observation(), float(action) + 0.5, end and odd, end and not odd, {}


def act(observations: Any, starts: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """The step within the episode, which tells whether the action belongs to its observation."""
    return observations["code"][:, 0].astype(np.int64) % 1000


def limited(make: Callable[[], Coded]) -> gym.Env[Any, Any]:
    return TimeLimit(make(), 10_000)


def vector(kind: str, count: int = 3, ends: bool = True) -> Any:
    makers = [partial(Coded, index, ends) for index in range(count)]
    if kind == "sb3":
        return DummyVecEnv([partial(limited, make) for make in makers])
    if kind == "reset rows":  # the interface of Stable-Baselines3 around resets that take a step of their own
        return GymnasiumVecEnv(RecordEpisodeStatistics(SyncVectorEnv(makers)))
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode(kind))


KINDS = ["NextStep", "SameStep", "Disabled", "sb3", "reset rows"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_pair_end_and_last_observation_is_right(kind: str) -> None:
    data = record(vector(kind), act, 40)
    assert data.steps >= 40 and data.final_observations
    for index in range(len(data)):
        episode = data.episode(index)
        numbers = episode.observations["code"][:, 0].astype(int)
        environment, number = divmod(numbers[0] // 1000, 100)
        assert list(numbers % 1000) == list(range(len(episode) + 1))
        assert (numbers // 1000 == numbers[0] // 1000).all()
        assert len(episode) == LENGTHS[(number + environment) % 4]
        assert list(episode.observations["parity"]) == [step % 2 for step in range(len(episode) + 1)]
        assert list(episode.actions[""]) == list(range(len(episode)))
        np.testing.assert_array_equal(episode.rewards, np.arange(len(episode)) + 0.5)
        assert episode.terminations[-1] == (number % 2 == 1)
        # SB3's VecEnv marks truncations of TimeLimit's kind alone, as Monitor and TimeLimit set them
        assert episode.truncations[-1] == (number % 2 == 0)


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_of_vector_environments_record_the_same(kind: str) -> None:
    reference = record(vector("NextStep"), act, episodes=11)
    data = record(vector(kind), act, episodes=11)
    assert len(data) == 11
    np.testing.assert_array_equal(data.observations["code"], reference.observations["code"])
    np.testing.assert_array_equal(data.rewards, reference.rewards)


def test_every_started_episode_is_finished_so_that_no_length_is_favored() -> None:
    data = record(vector("NextStep"), act, 10)
    # 4 rows bring 10 counted steps; the environments finish the episodes they are in: 3, then 7, then 1 and 5 long
    assert sorted(data.lengths) == [1, 3, 5, 7]
    assert data.truncations.sum() + data.terminations.sum() == len(data)


def test_episodes_are_spread_over_the_environments_beforehand() -> None:
    data = record(vector("NextStep"), act, episodes=7)
    environments = [int(data.episode(index).observations["code"][0, 0]) // 100_000 for index in range(7)]
    assert environments == [0, 0, 0, 1, 1, 2, 2]


class Pictures(gym.Env[Any, Any]):
    """Episodes of three steps that show pictures of 4 KiB."""

    observation_space = spaces.Box(0, 255, (64, 64), np.uint8)
    action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.shown = 0
        return self.picture(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.shown += 1
        return self.picture(), float(action), self.shown == 3, False, {}

    def picture(self) -> np.ndarray:
        return np.full((64, 64), 10 * self.shown + self.np_random.integers(10), np.uint8)


def test_what_is_reserved_follows_from_the_bytes_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = record(Pictures, "random", episodes=64, num_envs=32)
    monkeypatch.setattr("rltransformers.data.recorder.FIRST_BYTES", 2**18)  # 64 steps
    tracemalloc.start()
    try:
        data = record(Pictures, "random", episodes=64, num_envs=32)
        _, peak = tracemalloc.get_traced_memory()  # of what is asked for, touched or not
    finally:
        tracemalloc.stop()
    assert data.fingerprint() == reference.fingerprint()
    assert peak < 8 * data.observations[""].nbytes  # 8 MiB; 1,088 rows were 139 MiB


def test_environments_that_are_done_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Uneven(Pictures):
        """The first environment goes on for 300 steps."""

        def __init__(self, index: int) -> None:
            self.longest = 1 if index else 300

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            observation, reward, *_ = super().step(action)
            return observation, reward, self.shown == self.longest, False, {}

    monkeypatch.setattr("rltransformers.data.recorder.FIRST_BYTES", 2**18)
    envs = SyncVectorEnv([partial(Uneven, index) for index in range(32)])
    tracemalloc.start()
    try:
        data = record(envs, "random", episodes=32)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert data.lengths.tolist() == [300] + [1] * 31
    assert peak < 6 * data.observations[""].nbytes  # 9 MiB; 300 steps of 32 environments are 38 MiB


@pytest.mark.parametrize("wanted", [{"steps": 10**9}, {"episodes": 10**6}])
def test_more_than_fits_into_memory_is_refused_before_it_begins(
    wanted: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rltransformers.core.device.bytes_of_device", lambda device: 2**32)
    message = (
        r"to record 1,0[0,]* (steps|episodes) needs at least .* GiB, this process may have 4; record fewer at a time"
    )
    with pytest.raises(ConfigError, match=message):
        record(Pictures, "random", **wanted, num_envs=64)  # type: ignore[arg-type]


def test_arrays_that_cannot_grow_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = np.empty

    def full(shape: Any, *given: Any, **named: Any) -> Any:
        if np.shape(shape) == (3,):  # of pictures
            raise MemoryError("Unable to allocate 29 GiB")
        return empty(shape, *given, **named)

    monkeypatch.setattr("rltransformers.data.recorder.np.empty", full)
    with pytest.raises(ConfigError, match=r"more than 0 steps do not fit into memory .*29 GiB"):
        record(Pictures, "random", episodes=2, num_envs=2)


def test_what_never_ends_is_cut_and_marked_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rltransformers.data.recorder.LONGEST_FINISH", 20)
    data = record(vector("NextStep", ends=False), act, 30)
    assert list(data.lengths) == [30, 30, 30]  # 10 rows for the 30 steps, then 20 more
    assert data.truncations[data.offsets[1:] - 1].all()
    assert list(data.episode(1).observations["code"][:, 0]) == list(code(100, np.arange(31)))


def test_returns_equal_stepping_by_hand() -> None:
    actions = np.random.default_rng(0).integers(0, 2, 1000)
    clocks = itertools.count()

    def scripted(observations: Any, starts: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        return actions[None, next(clocks)]

    data = record(gym.make("CartPole-v1"), scripted, 100, seed=5)
    env = gym.make("CartPole-v1")
    observation, _ = env.reset(seed=int(numpy_stream(5, "environment").integers(2**31)))
    clock = 0
    for index in range(len(data)):
        observations, ended = [observation], False
        rewards: list[float] = []
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(actions[clock])
            observations.append(observation)
            rewards.append(float(reward))
            ended, clock = terminated or truncated, clock + 1
        np.testing.assert_array_equal(data.episode(index).observations[""], np.array(observations, np.float32))
        assert data.returns[index] == sum(rewards)
        observation, _ = env.reset()
        clock += 1  # next-step autoreset asks for an action that it ignores
    assert data.env_id == "CartPole-v1"


def test_deterministic_is_refused_where_nothing_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = PPO("MlpPolicy", "CartPole-v1", device="cpu", seed=0)
    for parts in ("random", act, mixture([(1, "random"), (1, act)])):
        with pytest.raises(ConfigError, match="random actions have no mode"):
            record("CartPole-v1", parts, 20, deterministic=True)
    record("CartPole-v1", mixture([(1, "random"), (1, model)]), 20, deterministic=True)
    monkeypatch.setattr("tests.data.coded.model", model, raising=False)
    named = record("CartPole-v1", "tests.data.coded:model", 100, deterministic=True, seed=0)
    np.testing.assert_array_equal(
        named.actions[""], record("CartPole-v1", model, 100, deterministic=True, seed=0).actions[""]
    )


def test_the_same_seed_gives_the_same_data() -> None:
    one, again, other = (record("CartPole-v1", "random", 200, num_envs=3, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.observations[""], again.observations[""])
    np.testing.assert_array_equal(one.actions[""], again.actions[""])
    assert one.observations[""].shape != other.observations[""].shape or not np.array_equal(
        one.observations[""], other.observations[""]
    )


def test_a_random_policy_lasts_about_22_steps_in_cart_pole() -> None:
    data = record("CartPole-v1", "random", 20_000, num_envs=16)
    # 900 episodes of mean 22 and deviation 12: standard error 0.4, five of them
    assert abs(data.returns.mean() - 22.2) < 2.0
    assert data.terminations.sum() == len(data)


def test_recorded_arrays_grow_beyond_their_first_size() -> None:
    data = record(vector("NextStep", 1), act, episodes=700)  # 4 lengths of 16 steps and 4 resets: 3500 rows
    assert len(data) == 700 and data.steps == 16 * 175


def test_a_part_of_the_observation_is_recorded_while_the_behavior_sees_all() -> None:
    def needs_all(observations: Any, starts: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        assert set(observations) == {"code", "parity"} and observations["code"].shape == (3, 3)
        return act(observations, starts, generator)

    data = record(vector("SameStep"), needs_all, episodes=6, recorded={"code": [2, 0]})
    assert data.observation_space == spaces.Dict({"code": spaces.Box(-np.inf, np.inf, (2,), np.float64)})
    assert (data.observations["code"][:, 0] == 7.0).all()
    assert data.metadata["recorded"] == {"code": [2, 0]}
    whole = record(vector("SameStep"), act, episodes=6, recorded={"parity": None})
    assert whole.observation_space == spaces.Dict({"parity": spaces.Discrete(2)})
    view = ObservationView(lambda observations: observations["code"][:, :1] / 2, spaces.Box(-np.inf, np.inf, (1,)))
    halved = record(vector("SameStep"), act, episodes=6, recorded=view)
    np.testing.assert_array_equal(halved.observations[""][:, 0] * 2, data.observations["code"][:, 1])
    for wrong, message in (
        ({"cod": [0]}, "did you mean 'code'"),
        ({"code": [3]}, r"0\.\.2"),
        ({"parity": [0]}, "parity"),
    ):
        with pytest.raises(ConfigError, match=message):
            record(vector("SameStep"), act, episodes=1, recorded=wrong)


def test_cart_pole_positions_alone_are_recorded_by_indices() -> None:
    data = record("CartPole-v1", "random", 50, num_envs=2, recorded=[0, 2])
    assert data.observation_space.shape == (2,)
    assert data.metadata["recorded"] == {"": [0, 2]}


def test_a_mixture_gives_every_part_its_exact_share_of_episodes_or_steps() -> None:
    def left(observations: Any, starts: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        return np.zeros(len(starts), np.int64)

    parts = mixture([(3, left), (1, "random"), (2, left)])
    data = record("CartPole-v1", parts, episodes=12, num_envs=2)
    assert [part["episodes"] for part in data.metadata["behaviors"]] == [6, 2, 4]
    assert len(data) == 12
    steps = record("CartPole-v1", parts, 600, num_envs=1)
    for part, share in zip(steps.metadata["behaviors"], (300, 100, 200), strict=True):
        assert share <= part["steps"] < share + 100  # the last episode is finished
    assert parts.shares(10) == [5, 2, 3] and sum(parts.shares(7)) == 7
    assert all("successes" not in part for part in data.metadata["behaviors"])  # CartPole knows none


@pytest.mark.parametrize(("steps", "episodes"), [(None, 31), (200, None)])
def test_successes_of_every_part_are_counted_where_the_environment_tells_them(
    steps: int | None, episodes: int | None
) -> None:
    parts = mixture([(2, "random"), (1, lambda observations, starts, generator: np.zeros(len(starts), np.int64))])
    data = record("rltransformers/CueRecall-v0", parts, steps, episodes=episodes, num_envs=3, env_kwargs={"delay": 2})
    first, second = data.metadata["behaviors"]
    right = data.returns == 1  # only the answer pays, and it decides
    assert first["successes"] == right[: first["episodes"]].sum() > 0
    assert second["successes"] == right[first["episodes"] :].sum() > 0


def test_recorded_data_write_and_read_as_minari(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    data = record("CartPole-v1", "random", 60, num_envs=2)
    written = write_minari(data, "cartpole/random-v0")
    assert written.spec.env_spec.id == "CartPole-v1" and "num_envs" not in written.spec.env_spec.kwargs
    env = written.recover_environment()
    env.close()
    again = load_trajectories("cartpole/random-v0")
    np.testing.assert_array_equal(again.observations[""], data.observations[""])
    assert again.env_id == "CartPole-v1"


def test_the_recorded_spec_makes_one_environment_whatever_vector_was_used() -> None:
    same_step: dict[str, Any] = {
        "vector_kwargs": {"autoreset_mode": AutoresetMode.SAME_STEP},
        "vectorization_mode": "sync",
    }
    vectors = [gym.make_vec("CartPole-v1", 2, sutton_barto_reward=True), gym.make_vec("CartPole-v1", 2, **same_step)]
    written = vectors[0].unwrapped.spec
    assert written is not None
    written.kwargs["autoreset_mode"] = "NextStep"  # what vectors written as one program may take
    for vector_env, options in zip(vectors, ({"sutton_barto_reward": True}, {}), strict=True):
        data = record(vector_env, "random", episodes=1)
        assert data.env_spec is not None
        spec = gym.envs.registration.EnvSpec.from_json(data.env_spec)
        assert spec.kwargs == options and spec.max_episode_steps == 500
        gym.make(spec).close()
        vector_env.close()


class Forgetful(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper that does not tell Gymnasium its arguments, as those of Stable-Baselines3 do not."""


def vectors_by_name() -> dict[str, Any]:
    def cartpole() -> gym.Env[Any, Any]:
        return gym.make("CartPole-v1")

    class Local(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
        def __init__(self, env: gym.Env[Any, Any]) -> None:
            gym.utils.RecordConstructorArgs.__init__(self)
            gym.Wrapper.__init__(self, env)

    return {
        "Stable-Baselines3": lambda: DummyVecEnv([lambda: Monitor(cartpole())] * 2),
        "a limit around a monitor": lambda: gym.wrappers.TimeLimit(Monitor(cartpole()), 20),
        "our wrappers": lambda: make_vec_env("CartPole-v1", 2, wrappers=["History"]),
        "wrappers of make_vec": lambda: gym.make_vec("CartPole-v1", 2, "sync", wrappers=[TimeAwareObservation]),
        "no arguments": lambda: Forgetful(cartpole()),
        "a class in a function": lambda: Local(cartpole()),
        "a function": lambda: gym.wrappers.TransformReward(cartpole(), lambda reward: reward),
        "VecNormalize": lambda: VecNormalize(DummyVecEnv([cartpole] * 2)),
        "a wrapper of vectors": lambda: gym.wrappers.vector.ClipReward(gym.make_vec("CartPole-v1", 2), -1.0, 1.0),
    }


@pytest.mark.parametrize("kind", vectors_by_name())
def test_a_recorded_spec_makes_the_same_environment_or_is_left_out_with_a_word(kind: str) -> None:
    env = vectors_by_name()[kind]()
    if kind in list(vectors_by_name())[:4]:
        data = record(env, "random", episodes=1)
        assert data.env_spec is not None
        again = gym.make(gym.envs.registration.EnvSpec.from_json(data.env_spec))
        assert again.observation_space == data.observation_space
        again.close()
    else:
        with pytest.warns(UserWarning, match="nothing can make its environment again"):
            data = record(env, "random", episodes=1)
        assert data.env_spec is None and data.env_id == "CartPole-v1"
    env.close()


@pytest.mark.parametrize("env", ["{}", "lambda: __import__('gymnasium').make({})"])
def test_our_environments_are_known_in_a_fresh_process(env: str) -> None:
    made = env.format("'rltransformers/CueRecall-v0'")
    code = f"from rltransformers.data import record; assert len(record({made}, 'random', episodes=1)) == 1"
    subprocess.run([sys.executable, "-c", code], check=True)


class Broken(Coded):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, np.nan if self.step_count == 2 else reward, terminated, truncated, info


def test_a_reward_that_is_not_a_number_is_named() -> None:
    with pytest.raises(DataError, match=r"reward of environment 0 is nan.* in step 2 of its episode 0"):
        record(Broken, act, 10)


def test_wrong_requests_are_refused() -> None:
    requests: list[dict[str, Any]] = [{}, {"steps": 5, "episodes": 5}]
    for request in requests:
        with pytest.raises(ConfigError, match="give steps or episodes"):
            record("CartPole-v1", "random", **request)
    with pytest.raises(ConfigError, match=r"num_envs must be a whole number in \[1, 65536\], got 0"):
        record("CartPole-v1", "random", 5, num_envs=0)
    with pytest.raises(ConfigError, match=r"returned actions of shape \(1,\) for 2 environments"):
        record("CartPole-v1", lambda observations, starts, generator: np.zeros(1, np.int64), 5, num_envs=2)
    steps = []
    with pytest.raises(DataError, match=r"returned numbers of float64 for Discrete\(2\); return whole numbers, as"):
        record("CartPole-v1", lambda o, s, g: np.zeros(len(s)), episodes=1)
    with pytest.raises(DataError, match=r"returned the action 2 for environment 1, outside Discrete\(2\); clip it"):
        record("CartPole-v1", lambda *_: steps.append(0) or np.array([1, 2]), 50, num_envs=2)  # type: ignore[func-returns-value]
    assert len(steps) == 1, "nothing was played with it"
    with pytest.raises(ConfigError, match="cannot record in int"):
        record(3, "random", 5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"steps": 0}, "steps must be a whole number"),
        ({"steps": True}, "steps must be a whole number"),
        ({"steps": 5.5}, "steps must be a whole number"),
        ({"steps": "5"}, "steps must be a whole number"),
        ({"episodes": 1.5}, r"episodes must be a whole number in \[1, 1000000\] or None"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
        ({"seed": "a"}, "seed must be a whole number of at least 0"),
        ({"seed": 1.5}, "seed must be a whole number of at least 0"),
        ({"deterministic": "yes"}, "deterministic must be true or false"),
        ({"name": 3}, "name must be a text or None"),
        ({"progress": 3}, "progress must be a function or None"),
        ({"vectorization_mode": "foo"}, "vectorization_mode must be one of 'sync', 'async', 'vector_entry_point'"),
        ({"env_kwargs": "foo"}, "env_kwargs must be a mapping or None"),
        ({"env_kwargs": {"foo": 1}}, "CartPole-v1 cannot be made with env_kwargs {'foo': 1}: TypeError"),
        ({"recorded": [True, False, True, False]}, "recorded must be a list of indices, which are whole numbers"),
        ({"recorded": [0.5]}, "recorded must be a list of indices"),
        ({"recorded": "02"}, "recorded must be a list of indices"),
        ({"recorded": 2}, "recorded must be a list of indices"),
        ({"recorded": [[0], [1, 2]]}, "recorded must be a list of indices"),
        ({"recorded": {"": ["a"]}}, "recorded must be a list of indices"),
        ({"recorded": {}}, "recorded names no leaf"),
        ({"recorded": []}, "recorded keeps the indices"),
        ({"recorded": [0, 2, 0]}, r"recorded must name every entry once, got \[0, 2, 0\]"),
    ],
)
def test_arguments_of_other_types_are_refused(request_: dict[str, Any], message: str) -> None:
    if not {"steps", "episodes"} & set(request_):
        request_ = {"steps": 5} | request_
    with pytest.raises(ConfigError, match=message):
        record("CartPole-v1", "random", **request_)


def test_a_function_that_makes_no_environment_of_these_keywords_is_named() -> None:
    with pytest.raises(ConfigError, match=r"Coded cannot be made with env_kwargs \{'foo': 1\}: TypeError"):
        record(Coded, act, 5, env_kwargs={"foo": 1})


@pytest.mark.parametrize("make", [lambda: gym.make_vec("CartPole-v1", 2), lambda: DummyVecEnv([Coded]), lambda: None])
def test_a_function_that_makes_no_single_environment_is_told_what_to_give(make: Any) -> None:
    with pytest.raises(ConfigError, match=r"no environment of Gymnasium; .* vector environments are given themselves"):
        record(make, "random", episodes=1)


def test_indices_and_numbers_of_numpy_are_taken() -> None:
    data = record("CartPole-v1", "random", np.int64(50), seed=np.uint32(3), recorded=np.array([0, 2]))  # type: ignore[arg-type]
    assert data.metadata["recorded"] == {"": [0, 2]} and data.metadata["seed"] == 3
    assert record("CartPole-v1", "random", 50, seed=3, recorded=[0, 2]).fingerprint() == data.fingerprint()


def test_actions_reach_the_environment_as_arrays() -> None:
    class Typed(Coded):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            assert isinstance(action, np.integer), type(action)
            return super().step(action)

    def as_list(observations: Any, starts: np.ndarray, generator: np.random.Generator) -> list[int]:
        return [int(action) for action in act(observations, starts, generator)]

    listed, arrays = (record(Typed, behavior, 20, num_envs=2) for behavior in (as_list, act))
    assert listed.fingerprint() == arrays.fingerprint()


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (["left", "right"], "the action of the behavior .*lambda> has dtype <U5: text"),
        ([None, 1], "the action of the behavior .*lambda> has dtype object"),
        ([0.5, 1.0], "returned the action 0.5 for environment 0"),
    ],
)
def test_actions_that_are_none_are_named_before_the_environment_gets_them(actions: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        record("CartPole-v1", lambda *_: actions, 5, num_envs=2)
