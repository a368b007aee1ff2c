"""Environments that break a rule at one step: in training, in evaluation, while recording."""

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv

from rltransformers.agents import DecisionTransformer, GTrXLPPO
from rltransformers.data import record
from rltransformers.training.evaluation import evaluate_online
from tests.fuzz.keywords import BACKBONE, DT, PPO, check_finite
from tests.fuzz.probe import THING, Probe, shown

BAD_OBSERVATIONS: dict[str, tuple[Any, ...]] = {
    "box": (float("nan"), float("inf"), 1e39, "shape", "longer", None, "abc", {"x": 1}, 1j, "object"),
    "discrete": (-1, 5, 10**9, None, "abc", 1.5, float("nan"), "shape"),
    "dict": ("missing key", float("nan"), None, "class", "shape"),
}
BAD_REWARDS: tuple[Any, ...] = (float("nan"), float("inf"), 1e39, None, "abc", 1j, [1.0, 2.0], THING, {})
EXCEPTIONS = (ValueError("boom"), KeyError("boom"), ZeroDivisionError("boom"), RuntimeError("boom"), AssertionError())
OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "box": spaces.Box(-10.0, 10.0, (2,)),
    "discrete": spaces.Discrete(5),
    "dict": spaces.Dict({"a": spaces.Box(-10.0, 10.0, (2,)), "b": spaces.Discrete(3)}),
}
LENGTH = 5
LONGEST = 100
"""Bound for endless episodes, in place of 200,000 steps."""
FAULTS = ("observation", "reward", "exception", "first observation", "exception in reset", "never ends")


class Faulty(gym.Env[Any, Any]):
    """Episodes of five steps; ``fault`` happens at step ``at`` of episode ``episode``."""

    def __init__(self, kind: str, fault: str, value: Any, at: int, episode: int) -> None:
        self.observation_space = OBSERVATIONS[kind]
        self.action_space = spaces.Discrete(2)
        self.kind, self.fault, self.value, self.at, self.episode = kind, fault, value, at, episode
        self.t = 0
        self.episodes = -1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.episodes = 0, self.episodes + 1
        due = self.episodes == self.episode
        if due and self.fault == "exception in reset":
            raise self.value
        return self._observe(due and self.fault == "first observation"), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.t += 1
        due = self.episodes == self.episode and self.t == self.at
        if due and self.fault == "exception":
            raise self.value
        reward = self.value if due and self.fault == "reward" else 1.0
        ends = self.t == LENGTH and self.fault != "never ends"
        return self._observe(due and self.fault == "observation"), reward, ends, False, {}

    def _observe(self, bad: bool) -> Any:
        good: Any = np.full(2, self.t, np.float32)
        if self.kind == "discrete":
            good = self.t % 5
        if self.kind == "dict":
            good = {"a": good, "b": self.t % 3}
        if not bad:
            return good
        match self.value:
            case "shape":
                return {"a": np.zeros(3, np.float32), "b": 0} if self.kind == "dict" else np.zeros(3, np.float32)
            case "longer":
                return np.zeros((2, 2), np.float32)
            case "object":
                return np.array([THING, None])
            case "missing key":
                return {"a": np.zeros(2, np.float32)}
            case "class":
                return {"a": np.zeros(2, np.float32), "b": 7}
            case float() | complex() if self.kind == "box":
                return np.array([0.0, self.value])
            case float() if self.kind == "dict":
                return {"a": np.array([0.0, self.value]), "b": 1}
        return self.value


def draw(chance: random.Random) -> Probe:
    """One environment and one use of it."""
    kind, fault = chance.choice(sorted(OBSERVATIONS)), chance.choice(FAULTS)
    if fault in ("observation", "first observation"):
        value = chance.choice(BAD_OBSERVATIONS[kind])
    else:
        value = chance.choice(BAD_REWARDS) if fault == "reward" else chance.choice(EXCEPTIONS)
    at, episode, copies = chance.randrange(1, LENGTH + 1), chance.randrange(2), chance.choice((1, 3))
    use = chance.choice(sorted(USES))
    if use == "evaluate":
        episode *= 2  # the copies reset themselves at an end; the next wave begins with another reset

    def make(copy: int) -> Callable[[], Any]:
        broken = copy == copies - 1
        return lambda: Faulty(kind, fault if broken else "nothing", value, at, episode)

    # Training goes on for ever in an endless episode, as it should.
    refused = None if fault == "never ends" and use == "learn" else True
    where = f"at step {at} of episode {episode}, {copies} copies" if fault != "never ends" else f"{copies} copies"
    return Probe(f"{use} with {fault} {shown(value)} ({kind}) {where}", lambda: USES[use](kind, make, copies), refused)


Make = Callable[[int], Callable[[], Any]]


def _learn(kind: str, make: Make, copies: int) -> None:
    env = DummyVecEnv([make(copy) for copy in range(copies)])
    model = GTrXLPPO("GTrXLPolicy", env, **{**PPO, "n_steps": 8})
    model.learn(8 * copies * 2)
    check_finite(model.policy)


@cache
def _trained(kind: str) -> GTrXLPPO:
    return GTrXLPPO("GTrXLPolicy", Faulty(kind, "nothing", None, 0, 0), **PPO)


@cache
def _decision(kind: str) -> DecisionTransformer:
    data = record(lambda: Faulty(kind, "nothing", None, 0, 0), "random", episodes=3, seed=0)
    keywords: dict[str, Any] = {**DT, "policy_kwargs": {"backbone": {**BACKBONE, "memory": 2}}}
    return DecisionTransformer("DTPolicy", data, **keywords)


def _evaluate(kind: str, make: Make, copies: int) -> None:
    env = DummyVecEnv([make(copy) for copy in range(copies)])
    evaluate_online(_trained(kind), env, "faulty", episodes=2 * copies, seed=0, longest_episode=LONGEST)


def _evaluate_decision(kind: str, make: Make, copies: int) -> None:
    envs = gym.vector.SyncVectorEnv(
        [make(copy) for copy in range(copies)], autoreset_mode=gym.vector.AutoresetMode.DISABLED
    )
    _decision(kind).evaluate(envs, target_returns=[5.0], episodes=2 * copies, longest_episode=LONGEST)


def _record(kind: str, make: Make, copies: int) -> None:
    env = DummyVecEnv([make(copy) for copy in range(copies)])
    record(env, "random", episodes=2 * copies, seed=0, longest_episode=LONGEST)


USES: dict[str, Callable[[str, Make, int], None]] = {
    "learn": _learn,
    "evaluate": _evaluate,
    "evaluate a Decision Transformer": _evaluate_decision,
    "record": _record,
}
