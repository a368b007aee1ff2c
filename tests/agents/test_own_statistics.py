"""Wrappers with running statistics that no file holds are warned of wherever an environment is taken."""

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import gymnasium.wrappers as single
import gymnasium.wrappers.vector as vector
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from rltransformers.agents import DecisionTransformer, GTrXLPPO
from rltransformers.data import record
from rltransformers.envs import make_vec_env
from rltransformers.training.evaluation import evaluate_online

POLICY: dict[str, Any] = {"backbone": {"width": 8, "layers": 1, "heads": 1, "memory": 4}}
plain = partial(gym.make, "CartPole-v1")


def observing() -> gym.Env[Any, Any]:
    return single.TimeLimit(single.NormalizeObservation(plain()), 5)


def rewarding() -> gym.Env[Any, Any]:
    return single.NormalizeReward(plain())


ENVIRONMENTS: list[tuple[list[str], Callable[[], Any]]] = [
    (["NormalizeObservation"], observing),
    (["NormalizeReward"], lambda: rewarding),
    (["NormalizeObservation"], lambda: DummyVecEnv([plain, observing])),
    (["NormalizeObservation"], lambda: make_vec_env("CartPole-v1", wrappers=["NormalizeObservation"])),
    (["NormalizeReward"], lambda: SyncVectorEnv([rewarding])),
    (["NormalizeReward"], lambda: AsyncVectorEnv([rewarding])),
    (
        ["NormalizeObservation", "NormalizeReward"],
        lambda: vector.NormalizeReward(vector.NormalizeObservation(SyncVectorEnv([plain]))),
    ),
    ([], lambda: VecNormalize(make_vec_env("CartPole-v1"))),
    ([], lambda: "CartPole-v1"),
]


def named(call: Callable[[], Any]) -> list[str]:
    """The wrappers that warnings of ``call`` name."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    words = [str(each.message) for each in caught if "running statistics" in str(each.message)]
    assert len(words) <= 1 and all("VecNormalize" in text for text in words)
    return [name for name in ("NormalizeObservation", "NormalizeReward") for text in words if f" {name} " in text]


@pytest.mark.parametrize(("names", "make"), ENVIRONMENTS)
def test_an_agent_warns_of_statistics_that_its_checkpoints_lack(names: list[str], make: Callable[[], Any]) -> None:
    env = make()
    assert named(lambda: GTrXLPPO("GTrXLPolicy", env, policy_kwargs=POLICY, device="cpu")) == names
    if isinstance(env, AsyncVectorEnv):
        env.close()


def test_load_set_env_record_and_evaluations_warn_as_well(tmp_path: Path) -> None:
    model = GTrXLPPO("GTrXLPolicy", "CartPole-v1", policy_kwargs=POLICY, device="cpu")
    model.save(tmp_path / "model")
    data = record("CartPole-v1", "random", episodes=2)
    decision = DecisionTransformer("DTPolicy", data, context_length=2, policy_kwargs=POLICY, device="cpu")
    doors: list[Callable[[Any], Any]] = [
        lambda env: GTrXLPPO.load(tmp_path / "model", env=env, device="cpu"),
        model.set_env,
        lambda env: record(env, "random", episodes=1),
        lambda env: decision.evaluate(env, 1.0, episodes=1),
        lambda env: evaluate_online(model, DummyVecEnv([env]), "CartPole-v1", episodes=1),
    ]
    for door in doors:
        assert named(partial(door, rewarding)) == ["NormalizeReward"]
        assert named(partial(door, plain)) == []
