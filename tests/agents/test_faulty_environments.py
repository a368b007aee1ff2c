"""A fault inside a vector environment that the caller built is named with copy and step, whoever runs it."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from rltransformers.agents import DecisionTransformer, GTrXLPPO
from rltransformers.core import values
from rltransformers.core.errors import DataError
from rltransformers.core.values import all_members
from rltransformers.data import record
from rltransformers.envs import GymnasiumVecEnv, make_vec_env
from rltransformers.training.evaluation import evaluate_online
from tests.agents.rollouts import rollout
from tests.envs.faulty import OBSERVATIONS, RESULTS, AlwaysWrong, Wrong

BACKBONE = {"width": 8, "layers": 1, "heads": 2}


def copies(fault: str, at: int) -> list[Callable[[], gym.Env[Any, Any]]]:
    """The second of three is at fault."""
    return [Wrong, partial(AlwaysWrong, fault, at), Wrong]


class Program(VectorEnv[Any, Any, Any]):
    """Three copies in one program that is wrong in step 2."""

    def __init__(self, fault: str) -> None:
        self.num_envs, self.fault, self.t = 3, fault, 0
        self.single_observation_space, self.single_action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, 3)
        self.action_space = batch_space(self.single_action_space, 3)
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t = 0
        return np.zeros((3, 2), np.float32), {}

    def step(self, actions: Any) -> Any:
        self.t += 1
        results = [np.zeros((3, 2), np.float32), np.ones(3), np.zeros(3, bool), np.zeros(3, bool)]
        if self.t == 2 and self.fault == "raises":
            raise ZeroDivisionError("the pole broke")
        if self.t == 2 and self.fault in BATCHES:
            place, value = BATCHES[self.fault]
            results[place] = value
        return (*results, {})


BATCHES: dict[str, tuple[int, Any]] = {
    "nan observation": (0, np.array([[0, 0], [0, np.nan], [0, 0]], np.float32)),
    "observation": (0, np.zeros((3, 5), np.float32)),
    "text observation": (0, np.array([["0", "0"]] * 3)),
    "nan reward": (1, np.array([0, np.nan, 0])),
    "text reward": (1, np.array(["1"] * 3)),
    "short reward": (1, np.ones(2)),
    "reward": (1, [1.0, None, 1.0]),
    "flag": (2, np.array([0, 0.5, 0])),
    "truncated": (3, [False, None, False]),
}


def learn(env: Any) -> None:
    GTrXLPPO("GTrXLPolicy", env, n_steps=4, policy_kwargs={"backbone": BACKBONE}, seed=0).learn(12)


@cache
def model(program: bool) -> GTrXLPPO:
    env = Program("nothing") if program else Wrong()
    return GTrXLPPO("GTrXLPolicy", env, policy_kwargs={"backbone": BACKBONE}, seed=0)


def evaluate(env: Any) -> None:
    venv = env if isinstance(env, VecEnv) else GymnasiumVecEnv(env)
    evaluate_online(model(isinstance(env, Program)), venv, "faulty", episodes=3)


def recording(env: Any) -> None:
    record(env, "random", 12)


@cache
def decision(program: bool) -> DecisionTransformer:
    data = record(Program("nothing") if program else SyncVectorEnv([Wrong]), "random", 12, seed=0)
    backbone = BACKBONE | {"memory": 2, "preset": "decision_transformer"}
    return DecisionTransformer("DTPolicy", data, context_length=3, policy_kwargs={"backbone": backbone}, seed=0)


def play(env: Any) -> None:
    decision(isinstance(env, Program)).evaluate(env, target_returns=[1.0], episodes=3)


def sync(fault: str, at: int = 2) -> Any:
    return SyncVectorEnv(copies(fault, at), autoreset_mode=AutoresetMode.DISABLED)


def dummy(fault: str, at: int = 2) -> Any:
    return DummyVecEnv(copies(fault, at))


USES = [
    pytest.param(use, build, id=f"{use.__name__}-{build.__name__}")
    for use, builds in ((learn, (dummy, sync)), (evaluate, (dummy, sync)), (recording, (dummy, sync)), (play, (sync,)))
    for build in builds
]


@pytest.mark.parametrize(("use", "build"), USES)
@pytest.mark.parametrize("at", [0, 2])
def test_an_exception_of_a_copy_is_named_and_chained(use: Any, build: Any, at: int) -> None:
    with pytest.raises(
        DataError, match=f"environment 1 raised ZeroDivisionError in step {at} of its episode"
    ) as caught:
        use(build("raises", at))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(("use", "build"), USES)
@pytest.mark.parametrize("fault", [*OBSERVATIONS, *RESULTS, "missing"])
def test_what_a_copy_returns_wrongly_is_named_before_anything_casts_it(use: Any, build: Any, fault: str) -> None:
    with pytest.raises(DataError, match=r"of environment 1 .*in step 2 of its episode"):
        use(build(fault))


@pytest.mark.parametrize("use", [learn, evaluate, recording, play])
def test_an_exception_of_a_program_is_of_one_of_its_copies(use: Any) -> None:
    words = r"one of the environments 0..2 raised ZeroDivisionError (in|at) step 2\b.*: the pole broke"
    with pytest.raises(DataError, match=words) as caught:
        use(Program("raises"))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("use", [learn, evaluate, recording, play])
@pytest.mark.parametrize("fault", BATCHES)
def test_what_a_program_returns_wrongly_is_named(use: Any, fault: str) -> None:
    with pytest.raises(DataError, match=r"environments?.* (in|at) step \d"):
        use(Program(fault))


@pytest.mark.parametrize("at", [0, 2])
def test_an_exception_of_a_single_environment_is_named(at: int) -> None:
    with pytest.raises(DataError, match=f"environment 0 raised ZeroDivisionError in step {at} of its episode"):
        learn(AlwaysWrong("raises", at))
    with pytest.raises(DataError, match=f"environment 0 raised ZeroDivisionError in step {at} of its episode"):
        recording(AlwaysWrong("raises", at))
    with pytest.raises(DataError, match=f"environment 1 raised ZeroDivisionError in step {at} of its episode"):
        record(partial(next, iter([Wrong(), AlwaysWrong("raises", at)])), "random", 12, num_envs=2)


def test_evaluation_and_recording_leave_the_copies_as_they_were() -> None:
    for use in (evaluate, recording, play):
        env = sync("raises") if use is play else dummy("raises")
        before = list(env.envs)
        with pytest.raises(DataError):
            use(env)
        assert list(env.envs) == before


def test_attributes_that_are_set_reach_the_environment() -> None:
    env = dummy("nothing")
    own = list(env.envs)
    GTrXLPPO("GTrXLPolicy", env, policy_kwargs={"backbone": BACKBONE})
    env.set_attr("at", 7)
    assert [copy.at for copy in own] == [7, 7, 7] == env.get_attr("at")


def cue(**options: Any) -> VecEnv:
    return make_vec_env("rltransformers/CueRecall-v0", 3, **options)


def plain_cue() -> VecEnv:
    return DummyVecEnv([partial(gym.make, "rltransformers/CueRecall-v0")] * 3)


@pytest.mark.parametrize(
    ("build", "by_environment", "by_agent"),
    [
        (cue, 1, 0),
        (plain_cue, 0, 1),
        (lambda: VecNormalize(cue()), 1, 1),  # normalizing makes new numbers of them
        (lambda: VecNormalize(plain_cue()), 0, 2),
    ],
)
def test_the_observations_of_a_step_are_checked_once(
    build: Callable[[], VecEnv], by_environment: int, by_agent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = GTrXLPPO("GTrXLPolicy", build(), n_steps=5, policy_kwargs={"backbone": BACKBONE}, seed=0)
    rollout(agent)
    seen = []

    def look(*given: Any) -> bool:
        seen.append(given)
        return all_members(*given)

    monkeypatch.setattr(values, "all_members", look)
    rollout(agent)  # no episode ends in it; the agent looks once more at the observation that it begins with
    assert len(seen) == 5 * (by_environment + by_agent) + bool(by_agent)
