"""``make_vec_env`` and ``make_vector_env``: what they build from an id, and how they refuse what they cannot build."""

import errno
import importlib
import os
import signal
import sys
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecMonitor

from rltransformers.core.errors import ConfigError, DataError, MissingExtraError
from rltransformers.core.guard import innermost
from rltransformers.core.ranges import Processes
from rltransformers.core.seeding import branch_seeds
from rltransformers.envs import DropIndices, GymnasiumVecEnv, find_spec, make_env, make_vec_env, make_vector_env
from rltransformers.envs.make import WrapperConfig
from rltransformers.envs.pool import EnvPoolVector
from tests.envs import stand_in_pool


class Reuser(gymnasium.Env[Any, Any]):
    """Returns the same nested arrays at every step and after a reset, and counts in them; ends after three steps."""

    def __init__(self, field: str = "box", **none: Any) -> None:
        inner = spaces.Text(3) if field == "text" else spaces.Box(-9, 9, (2,), np.float32)
        self.observation_space = spaces.Dict({} if field == "nothing" else {"deep": spaces.Dict({"t": inner})})
        actions = {"text action": spaces.Tuple([spaces.Text(2)]), "no action": spaces.Dict({})}
        self.action_space = actions.get(field, spaces.Discrete(2))
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


def whole_rows(env: VecEnv, steps: int = 40) -> list[Any]:
    """What a learner sees, ends of episodes included, under seeded actions; a second reset with other seeds at last."""
    env.action_space.seed(1)
    env.seed(3)
    seen: list[Any] = [env.reset()]
    for _ in range(steps):
        *row, infos = env.step(np.array([env.action_space.sample() for _ in range(env.num_envs)]))
        kept = ("terminal_observation", "TimeLimit.truncated")
        episodes = [(info["episode"]["r"], info["episode"]["l"]) for info in infos if "episode" in info]
        seen.append((*row, [[info.get(name) for name in kept] for info in infos], episodes))
    env.seed(70)
    seen.append(env.reset())
    env.close()
    return seen


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """EnvPool, which few machines have."""
    monkeypatch.setitem(sys.modules, "envpool", stand_in_pool)


PROCESSES = [
    pytest.param(True, SubprocVecEnv, marks=pytest.mark.slow),  # start processes
    pytest.param("envpool", EnvPoolVector),
]


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize(("processes", "kind"), PROCESSES)
def test_whoever_steps_the_copies_gives_the_same_rows(processes: Processes, kind: type) -> None:
    """Observations, rewards, ends of both kinds with their last observations, lengths and returns; seeds, too."""
    wrappers: list[WrapperConfig] = [{"name": "DropIndices", "indices": [1, 3]}, "History"]
    given: dict[str, Any] = {"env_kwargs": {"max_episode_steps": 14}}
    given |= {} if processes == "envpool" else {"wrappers": wrappers}
    alone = whole_rows(make_vec_env("CartPole-v1", 2, **given))
    apart = make_vec_env("CartPole-v1", 2, processes=processes, **given)
    assert isinstance(innermost(apart), kind)
    np.testing.assert_equal(whole_rows(apart), alone)
    flags = [flag for row in alone[1:-1] for _, flag in row[3]]
    assert True in flags and sum(row[2].sum() for row in alone[1:-1]) > sum(flags) > 0  # limits, and ends besides


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"env_id": "CartPoel-v1"}, "^EnvPool has no environment 'CartPoel-v1'; did you mean 'CartPole-v1'"),
        ({"env_id": "ALE/Pong-v5"}, r"has no environment 'ALE/Pong-v5'; `envpool.list_all_envs\(\)` names"),
        ({"env_id": lambda: None}, "EnvPool makes environments of ids of its own"),
        ({"wrappers": ["History"]}, r"no single environments that wrappers \['History'\] could go around"),
        ({"env_kwargs": {"gravity": 3}}, "cannot be made with env_kwargs {'gravity': 3}"),
        ({"num_envs": 0}, "num_envs"),
        ({"processes": "threads"}, "processes must be .*'envpool', 'tensors', got 'threads'"),
    ],
)
def test_a_pool_that_cannot_be_is_refused_with_the_reason(arguments: dict[str, Any], words: str) -> None:
    given = {"env_id": "CartPole-v1", "processes": "envpool", **arguments}
    with pytest.raises(ConfigError, match=words):
        make_vec_env(**given)


def test_envpool_that_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(MissingExtraError, match=r"rltransformers\[envpool\]"):
        make_vec_env("CartPole-v1", processes="envpool")


@pytest.mark.usefixtures("pool")
def test_a_pool_whose_rows_belong_to_other_copies_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand_in_pool.Pool, "_info", lambda self, copies: {"env_id": 0 * copies})
    with pytest.raises(DataError, match=r"reset the copies \[0 1 2\] and returned rows of \[0 0 0\]"):
        make_vec_env("CartPole-v1", 3, processes="envpool").reset()


@pytest.mark.filterwarnings("ignore:.*Box (low|high)'s precision lowered")
def test_envpool_runs_when_installed() -> None:
    pytest.importorskip("envpool", reason="needs rltransformers[envpool]")
    given: dict[str, Any] = {"seed": 5, "processes": "envpool", "env_kwargs": {"max_episode_steps": 14}}
    once, again = (whole_rows(make_vec_env("CartPole-v1", 3, **given)) for _ in range(2))
    np.testing.assert_equal(once, again)
    lengths = [length for row in once[1:-1] for _, length in row[4]]
    assert len(lengths) > 3 and max(lengths) <= 14  # no step of a reset counts


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
        ("bsuite/memory_len-v0", "bsuite", "bsuite"),
        ("pointmaze-medium-singletask-task1-v0", "ogbench", "ogbench"),
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"env_id": "popgym-LabyrinthEscapeEasy-v0"}, r"needs mazelib.*pip install 'popgym\[navigation\]'"),
        ({"env_id": "CartPole-v1", "wrappers": ["AtariPreprocessing"]}, r"not installed.*rltransformers\[atari\]"),
    ],
)
def test_a_missing_package_is_named_and_not_taken_for_an_unknown_word(
    arguments: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("popgym", "cv2", "mazelib"):
        monkeypatch.setitem(sys.modules, package, ModuleType(package) if package == "popgym" else None)
    monkeypatch.delitem(gymnasium.registry, "popgym-LabyrinthEscapeEasy-v0", raising=False)
    with pytest.raises(MissingExtraError, match=words):
        make_vec_env(**arguments)


@pytest.fixture
def bsuite(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Packages named bsuite and shimmy, the second of which registers an environment when it is imported."""
    real = importlib.import_module

    def imported(name: str, package: str | None = None) -> Any:
        if name == "shimmy":
            gymnasium.register("bsuite/memory_len-v0", entry_point=Reuser)
        return sys if name in ("bsuite", "shimmy") else real(name, package)

    monkeypatch.setattr(importlib, "import_module", imported)
    monkeypatch.delitem(gymnasium.registry, "bsuite/memory_len-v0", raising=False)
    yield
    del gymnasium.registry["bsuite/memory_len-v0"]


@pytest.mark.usefixtures("bsuite")
def test_bsuite_is_registered_by_shimmy_where_both_are_installed() -> None:
    assert find_spec("bsuite/memory_len-v0").entry_point is Reuser


@pytest.mark.parametrize("missing", ["bsuite", "shimmy"])
def test_one_of_the_two_without_the_other_is_called_missing(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bsuite", "shimmy"):
        monkeypatch.setitem(sys.modules, name, None if name == missing else sys)
    monkeypatch.delitem(gymnasium.registry, "bsuite/memory_len-v0", raising=False)
    with pytest.raises(MissingExtraError, match=rf"{missing} is not installed.*rltransformers\[bsuite\]"):
        find_spec("bsuite/memory_len-v0")


@pytest.mark.parametrize("error", [gymnasium.error.DependencyNotInstalled("mujoco"), ModuleNotFoundError("imageio")])
def test_a_missing_simulator_names_its_extra(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hopper draws with packages of its own, whose absence its constructor finds no words for."""

    def without_mujoco(*args: Any, **kwargs: Any) -> Any:
        raise error

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
        ({"wrappers": ["vector"]}, "unknown wrapper 'vector'; (known|did you mean '(?!vector'))"),
        ({"wrappers": [{"indices": [1]}]}, "a wrapper is a name or"),
        ({"wrappers": [{"name": "History", "previous_actions": True}]}, "did you mean 'previous_action'"),
        ({"wrappers": [{"name": "ClipReward", "low": 0}]}, "does not take the options"),
        ({"wrappers": "History"}, r"wrappers is a list, also of a single one: write \['History'\]"),
        ({"wrappers": {"name": "History"}}, "wrappers is a list, also of a single one"),
        ({"wrappers": None}, "wrappers must be a list"),
        ({"wrappers": [lambda env: 5]}, "makes 5, which is no environment of Gymnasium"),
        ({"env_kwargs": 5}, "env_kwargs must be a mapping"),
        (
            {"env_id": "rltransformers/CueRecall-v0", "env_kwargs": {"autoreset_mode": "NextStep"}},
            "leave autoreset_mode out",
        ),
        ({"env_id": "tests/Reuser-v0", "env_kwargs": {"field": "nothing"}}, "observation space Dict.* holds nothing"),
        ({"env_id": "tests/Reuser-v0", "env_kwargs": {"field": "no action"}}, "action space Dict.* holds nothing"),
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


@pytest.mark.parametrize(
    ("name", "value"), [("seed", "a"), ("seed", 1.5), ("seed", -1), ("seed", True), ("monitor", "x")]
)
def test_an_argument_of_another_type_is_refused_at_once(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be"):
        make_vec_env("CartPole-v1", **{name: value})


def test_more_processes_than_open_files_are_refused_with_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_files(*args: Any, **options: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("rltransformers.envs.make.SubprocVecEnv", without_files)
    with pytest.raises(ConfigError, match=r"num_envs 9 .*processes.* more open files .* or processes false"):
        make_vec_env("CartPole-v1", 9, processes=True)


def gymnasium_rows(env: VectorEnv[Any, Any, Any], steps: int = 30) -> list[Any]:
    """Observations of copies with the seeds of a run of seed 4 under the actions of ``rows``; how each step ended."""
    env.single_action_space.seed(1)
    seen: list[Any] = [env.reset(seed=branch_seeds(4, "environment", env.num_envs))[0]]  # type: ignore[arg-type]
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


def test_lists_of_a_config_are_tuples_where_a_wrapper_of_gymnasium_takes_them() -> None:
    wrappers: list[WrapperConfig] = [{"name": "ReshapeObservation", "shape": [2, 2]}]
    assert make_env("CartPole-v1", wrappers=wrappers).observation_space.shape == (2, 2)
    env = make_env(
        "MountainCar-v0", wrappers=[{"name": "DiscretizeObservation", "bins": [3, 4], "multidiscrete": True}]
    )
    assert env.observation_space == gymnasium.spaces.MultiDiscrete([3, 4])


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
    """Seeds repeat the rows, also of CountRecall, which draws from the global generator of NumPy."""
    pytest.importorskip("popgym")
    for task in ("RepeatFirstEasy", "AutoencodeEasy", "CountRecallEasy"):
        once, again = (rows(make_vec_env(f"popgym-{task}-v0", 2, seed=0)) for _ in range(2))
        np.testing.assert_equal(once, again)


def test_minigrid_runs_when_installed() -> None:
    pytest.importorskip("minigrid")
    for wrapper in ("DropUnsupported", "GridSymbols"):
        rows(make_vec_env("MiniGrid-MemoryS7-v0", 2, seed=0, wrappers=[wrapper]))


@pytest.mark.third_party
def test_memory_chains_of_bsuite_run_when_installed() -> None:
    """Whoever answers with the bit that was asked for gets 1; copies differ, and a seed repeats its rows."""
    for name in ("bsuite", "shimmy"):
        pytest.importorskip(name, reason="needs rltransformers[bsuite]")
    for task, options, steps in (("memory_len", {"memory_length": 6}, 7), ("memory_size", {"num_bits": 9}, 3)):
        given: dict[str, Any] = {"seed": 0, "env_kwargs": options}
        env = make_vec_env(f"bsuite/{task}-v0", 8, **given)
        first: Any = env.reset()
        bits = first[:, 0, 2:]
        assert first.shape == (8, 1, 2 + options.get("num_bits", 1)) and len(np.unique(bits, axis=0)) > 1
        observation = first
        for step in range(steps):
            asked = observation[:, 0, 1].astype(int)
            answer = bits[np.arange(8), asked] > 0
            observation, rewards, dones, infos = env.step(answer.astype(int))
            assert (dones == (step == steps - 1)).all()
        np.testing.assert_array_equal(rewards, 1)
        assert [info["episode"]["l"] for info in infos] == [steps] * 8
        once, again = (rows(make_vec_env(f"bsuite/{task}-v0", 3, **given)) for _ in range(2))
        np.testing.assert_equal(once, again)
    with pytest.raises(ConfigError, match=r"cannot be made with env_kwargs {}.*'memory_length'"):
        make_vec_env("bsuite/memory_len-v0")


def test_an_interruption_of_all_processes_of_a_terminal_leaves_the_workers_alone() -> None:
    env = make_vec_env("CartPole-v1", 1, seed=0, processes=True, monitor=False)
    env.reset()
    workers: Any = env.venv.processes  # type: ignore[attr-defined]
    for number in (signal.SIGINT, signal.SIGHUP):
        os.kill(workers[0].pid, number)
    assert env.step(np.array([0]))[1] == 1.0
    env.close()
