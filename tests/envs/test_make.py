"""``make_vec_env`` and ``make_vector_env``: what they build from an id, and how they refuse what they cannot build."""

import importlib
import os
import signal
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecMonitor

from rltransformers.core.errors import ConfigError, MissingExtraError
from rltransformers.envs import DropIndices, GymnasiumVecEnv, find_spec, make_env, make_vec_env, make_vector_env
from rltransformers.envs.make import WrapperConfig


class Reuser(gymnasium.Env[Any, Any]):
    """Returns the same nested arrays at every step and after a reset, and counts in them; ends after three steps."""

    def __init__(self, field: str = "box", **none: Any) -> None:
        inner = spaces.Text(3) if field == "text" else spaces.Box(-9, 9, (2,), np.float32)
        self.observation_space = spaces.Dict({"deep": spaces.Dict({"t": inner})})
        self.action_space = spaces.Tuple([spaces.Text(2)]) if field == "text action" else spaces.Discrete(2)
        self.t = np.zeros(2, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t[:] = 0
        return {"deep": {"t": self.t}}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return {"deep": {"t": self.t}}, 1.0, False, bool(self.t[0] == 3), {}


CUE_UNKNOWN = "^env_kwargs of rltransformers/CueRecall-v0: unknown setting cue; did you mean 'cues'"


@pytest.fixture(autouse=True)
def _reuser() -> Any:
    gymnasium.register("tests/Reuser-v0", entry_point=Reuser)
    yield
    del gymnasium.registry["tests/Reuser-v0"]


def base(env: VecEnv) -> VecEnv:
    return env.unwrapped


def rows(env: VecEnv, steps: int = 30) -> list[Any]:
    env.action_space.seed(1)
    seen: list[Any] = [env.reset()]
    for _ in range(steps):
        seen.append(env.step(np.array([env.action_space.sample() for _ in range(env.num_envs)]))[:3])
    env.close()
    return seen


def test_our_tasks_run_as_one_program_unless_wrappers_are_asked_for() -> None:
    program = make_vec_env("rltransformers/KeyToDoor-v0", 3, seed=4)
    wrapped = make_vec_env(
        "rltransformers/KeyToDoor-v0", 3, seed=4, wrappers=[{"name": "KeepIndices", "indices": range(6)}]
    )
    assert isinstance(base(program), GymnasiumVecEnv) and isinstance(base(wrapped), DummyVecEnv)
    np.testing.assert_equal(rows(program), rows(wrapped))


def test_options_reach_the_environment() -> None:
    env = make_vec_env("rltransformers/CueRecall-v0", 2, env_kwargs={"delay": 1, "cues": 7})
    assert env.action_space == spaces.Discrete(7)
    assert make_vec_env("CartPole-v1", env_kwargs={"max_episode_steps": 7}).get_attr("spec")[0].max_episode_steps == 7


def test_episode_statistics_and_success_arrive_in_the_infos() -> None:
    env = make_vec_env("rltransformers/CueRecall-v0", 2, seed=0, env_kwargs={"delay": 1})
    assert isinstance(env, VecMonitor)
    assert not isinstance(make_vec_env("CartPole-v1", monitor=False), VecMonitor)
    env.reset()
    for _ in range(3):
        *_, infos = env.step(np.zeros(2, np.int64))
    for info in infos:
        assert info["episode"]["l"] == 3 and info["episode"]["r"] == float(info["is_success"])


def test_the_same_seed_gives_the_same_rows_and_copies_differ() -> None:
    first, again = (rows(make_vec_env("CartPole-v1", 3, seed=9)) for _ in range(2))
    np.testing.assert_equal(first, again)
    assert (first[0][0] != first[0][1]).any()


def test_nested_observations_arrive_flat_and_terminal_ones_are_not_overwritten() -> None:
    env = make_vec_env("tests/Reuser-v0", 2)
    assert set(env.observation_space) == {"deep/t"}  # type: ignore[call-overload]  # a Dict iterates its keys
    env.reset()
    for _ in range(3):
        observation, _, dones, infos = env.step(np.zeros(2, np.int64))
    assert dones.all() and infos[0]["TimeLimit.truncated"]
    np.testing.assert_array_equal(observation["deep/t"], 0)  # type: ignore[call-overload]  # it is a dict
    np.testing.assert_array_equal(infos[0]["terminal_observation"]["deep/t"], 3)


def test_wrappers_are_named_with_options_and_applied_in_order() -> None:
    env = make_env("CartPole-v1", wrappers=[{"name": "DropIndices", "indices": "velocities"}, "History"])
    assert isinstance(env.observation_space, spaces.Dict)
    assert set(env.observation_space) == {"observation", "previous_action", "previous_reward", "first_step"}
    assert env.observation_space["observation"].shape == (2,)
    stacked = make_env("CartPole-v1", wrappers=[{"name": "FrameStackObservation", "stack_size": 3}])
    assert stacked.observation_space.shape == (3, 4)
    foreign = make_env("CartPole-v1", wrappers=["rltransformers.envs.wrappers:History", "FlatDict"])
    assert isinstance(foreign.observation_space, spaces.Dict) and "first_step" in foreign.observation_space.spaces


@pytest.mark.slow
def test_processes_give_the_same_rows() -> None:
    wrappers: list[WrapperConfig] = [{"name": "DropIndices", "indices": [1, 3]}, "History"]
    alone = rows(make_vec_env("CartPole-v1", 2, seed=3, wrappers=wrappers), 15)
    apart = make_vec_env("CartPole-v1", 2, seed=3, wrappers=wrappers, processes=True)
    assert isinstance(base(apart), SubprocVecEnv)
    np.testing.assert_equal(rows(apart, 15), alone)


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("CartPoel-v1", "did you mean 'CartPole-v1'"),
        ("cartpole-v1", "did you mean 'CartPole-v1'"),
        ("CueRecall-v0", "did you mean 'rltransformers/CueRecall-v0'"),
        ("rltransformers/KeyDoor-v0", "did you mean 'rltransformers/KeyToDoor-v0'"),
        ("zzzzzz", "pprint_registry"),
        ("no_such_module:CartPole-v1", "cannot be imported"),
    ],
)
def test_an_unknown_id_is_refused_with_the_closest_ones(env_id: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_vec_env(env_id)


@pytest.mark.parametrize(
    ("env_id", "module", "extra"),
    [
        ("popgym-RepeatFirstEasy-v0", "popgym", "popgym"),
        ("MiniGrid-MemoryS7-v0", "minigrid", "minigrid"),
        ("BabyAI-GoToObj-v0", "minigrid", "minigrid"),
        ("ALE/Pong-v5", "ale_py", "atari"),
    ],
)
def test_a_missing_suite_names_its_extra(env_id: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def without_it(name: str, package: str | None = None) -> Any:
        if name == module:
            raise ModuleNotFoundError(name, name=name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", without_it)
    monkeypatch.delitem(gymnasium.registry, env_id, raising=False)
    with pytest.raises(MissingExtraError, match=rf"rltransformers\[{extra}\]"):
        find_spec(env_id)


def test_a_missing_simulator_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_mujoco(*args: Any, **kwargs: Any) -> Any:
        raise gymnasium.error.DependencyNotInstalled("mujoco")

    monkeypatch.setattr(gymnasium, "make", without_mujoco)
    with pytest.raises(MissingExtraError, match=r"rltransformers\[mujoco\]"):
        make_vec_env("Hopper-v5")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_envs": 0}, "num_envs"),
        ({"wrappers": ["DropIndex"]}, "did you mean 'DropIndices'"),
        ({"wrappers": ["no_such_module:Wrapper"]}, "cannot be imported"),
        ({"wrappers": ["math:pi"]}, "unknown wrapper"),
        ({"wrappers": [{"indices": [1]}]}, "a wrapper is a name or"),
        ({"wrappers": [{"name": "History", "rewards": True}]}, "does not take the options"),
        ({"env_kwargs": {"gravity": 3}}, "cannot be made with env_kwargs {'gravity': 3}.*unexpected keyword"),
        ({"env_id": "tests/Reuser-v0", "env_kwargs": {"field": "text"}}, "'deep/t' space is Text.*DropUnsupported"),
        ({"env_id": "tests/Reuser-v0", "env_kwargs": {"field": "text"}, "processes": True}, "is Text"),
        ({"env_id": "tests/Reuser-v0", "env_kwargs": {"field": "text action"}}, "action space at '0' is Text"),
        ({"env_id": "rltransformers/CueRecall-v0", "env_kwargs": {"cue": 3}}, CUE_UNKNOWN),
        ({"env_id": "rltransformers/CueRecall-v0", "env_kwargs": {"cue": 3}, "wrappers": ["History"]}, CUE_UNKNOWN),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_reason(arguments: dict[str, Any], words: str) -> None:
    given = {"env_id": "CartPole-v1", **arguments}
    with pytest.raises(ConfigError, match=words):
        make_vec_env(**given)
    if given.pop("processes", None) is None:
        with pytest.raises(ConfigError, match=words):
            make_vector_env(**given)


def gymnasium_rows(env: VectorEnv[Any, Any, Any], steps: int = 30) -> list[Any]:
    """Observations of copies with seeds 4, 5, ... under the actions of ``rows``, and how each step ended."""
    env.single_action_space.seed(1)
    seen: list[Any] = [env.reset(seed=4)[0]]
    for _ in range(steps):
        actions = np.array([env.single_action_space.sample() for _ in range(env.num_envs)])
        observations, rewards, terminated, truncated, _ = env.step(actions)
        if (ended := terminated | truncated).any():
            observations = env.reset(options={"reset_mask": ended})[0]
        seen.append((observations, rewards, ended))
    env.close()
    return seen


@pytest.mark.parametrize("wrappers", [[], ["History"], [{"name": "DropIndices", "indices": [1]}, "History"]])
def test_both_kinds_of_vector_play_the_same_episodes(wrappers: list[WrapperConfig]) -> None:
    for env_id, options in (("rltransformers/CueRecall-v0", {"delay": 2}), ("CartPole-v1", {})):
        one = rows(make_vec_env(env_id, 2, seed=4, env_kwargs=options, wrappers=wrappers))
        other = gymnasium_rows(make_vector_env(env_id, 2, env_kwargs=options, wrappers=wrappers))
        np.testing.assert_equal(one, other)


def test_a_vector_of_gymnasium_waits_at_the_end_and_keeps_observations_nested() -> None:
    nested = make_vector_env("tests/Reuser-v0", 2)
    assert isinstance(nested, SyncVectorEnv) and nested.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    assert nested.single_observation_space == Reuser().observation_space
    program = make_vector_env("rltransformers/CueRecall-v0", 2)
    assert not isinstance(program, SyncVectorEnv) and program.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    forms: list[WrapperConfig] = ["FlatDict", {"name": "FlatDict"}]
    for flat in forms:
        space = make_vector_env("tests/Reuser-v0", 2, wrappers=[flat]).single_observation_space
        assert isinstance(space, spaces.Dict) and list(space) == ["deep/t"]


def test_a_wrapper_may_be_a_function_and_has_its_place_in_the_order() -> None:
    def halved(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        return DropIndices(env, [0, 1])

    inner = make_env("CartPole-v1", wrappers=[halved, {"name": "KeepIndices", "indices": [1]}])
    outer = make_env("CartPole-v1", wrappers=[{"name": "KeepIndices", "indices": [0, 1, 3]}, halved])
    whole = gymnasium.make("CartPole-v1").reset(seed=0)[0]
    for env in (inner, outer):
        np.testing.assert_array_equal(env.reset(seed=0)[0], whole[3:])
    assert make_vec_env("CartPole-v1", 2, wrappers=[halved]).observation_space.shape == (2,)


class RandomModel:
    """What ``evaluate_policy`` needs of a model."""

    def __init__(self, env: VecEnv) -> None:
        self.actions = env.action_space

    def predict(self, observation: Any, state: Any = None, **ignored: Any) -> tuple[Any, Any]:
        n = len(next(iter(observation.values())) if isinstance(observation, dict) else observation)
        return np.array([self.actions.sample() for _ in range(n)]), None


@pytest.mark.parametrize("env_id", ["rltransformers/KeyToDoor-v0", "CartPole-v1", "Pendulum-v1", "tests/Reuser-v0"])
def test_evaluate_policy_runs_on_the_result(env_id: str) -> None:
    env = make_vec_env(env_id, 2, seed=0)
    model: Any = RandomModel(env)
    returns, lengths = evaluate_policy(model, env, n_eval_episodes=4, return_episode_rewards=True)
    assert len(returns) == len(lengths) == 4  # type: ignore[arg-type]  # lists, as asked for


def test_popgym_runs_when_installed() -> None:
    pytest.importorskip("popgym")
    for env_id in ("popgym-RepeatFirstEasy-v0", "popgym-AutoencodeEasy-v0", "popgym-CountRecallEasy-v0"):
        rows(make_vec_env(env_id, 2, seed=0))


def test_minigrid_runs_when_installed() -> None:
    pytest.importorskip("minigrid")
    for wrapper in ("DropUnsupported", "GridSymbols"):
        rows(make_vec_env("MiniGrid-MemoryS7-v0", 2, seed=0, wrappers=[wrapper]))


def test_an_interruption_of_all_processes_of_a_terminal_leaves_the_workers_alone() -> None:
    env = make_vec_env("CartPole-v1", 1, seed=0, processes=True, monitor=False)
    env.reset()
    workers: Any = env.venv.processes  # type: ignore[attr-defined]
    for number in (signal.SIGINT, signal.SIGHUP):
        os.kill(workers[0].pid, number)
    assert env.step(np.array([0]))[1] == 1.0
    env.close()
