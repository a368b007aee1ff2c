"""The online agents as small as they get, and the environments that their peers' behaviors are tried in."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from rltransformers.agents import GTrXLDQN, GTrXLPPO, GTrXLSAC, GTrXLVMPO
from tests.agents.tiny_envs import Stroll, Walk

Kind = type[Any]  # one of the four, whose arguments differ
AGENTS: list[Kind] = [GTrXLPPO, GTrXLVMPO, GTrXLDQN, GTrXLSAC]
WITH_REPLAY = (GTrXLDQN, GTrXLSAC)
every_agent = pytest.mark.parametrize("kind", AGENTS)

BACKBONE = {"preset": "gtrxl", "width": 8, "layers": 1, "heads": 2, "memory": 4}
STEPS = 8
"""Of a rollout; agents with a replay collect 4 at a time."""

VECTOR = spaces.Box(-1.0, 1.0, (2,), np.float32)


def agent(kind: Kind, env: Any = None, policy: dict[str, Any] | None = None, **settings: Any) -> Any:
    """An agent that learns from its first rollout on; without ``env`` in the environment of ``walk``."""
    chosen: dict[str, Any] = {"seed": 0, "device": "cpu", "policy_kwargs": {"backbone": BACKBONE} | (policy or {})}
    if kind in WITH_REPLAY:
        chosen |= {"target_update_interval": 3} if kind is GTrXLDQN else {}
        chosen |= {"learning_starts": 4, "train_freq": 4, "segment_length": 4, "batch_size": 4, "buffer_size": 400}
    else:
        chosen |= {"n_steps": STEPS} | ({"n_epochs": 1} if kind is GTrXLPPO else {})
    return kind(*kind.policy_aliases, walk(kind) if env is None else env, **(chosen | settings))


def actions_of(kind: Kind) -> gym.Space[Any]:
    """A Box for the agents that learn any actions, classes for the one that does not."""
    return spaces.Discrete(4) if kind is GTrXLDQN else VECTOR


def walk(kind: Kind, lengths: tuple[int, ...] = (5, 3, 7)) -> gym.Env[Any, Any]:
    """Episodes of known lengths, whose statistics a Monitor tells; actions as in ``actions_of``."""
    return Monitor(Stroll(lengths) if kind is GTrXLDQN else Walk(lengths))


def walks(kind: Kind, count: int = 2, lengths: tuple[int, ...] = (5, 3, 7)) -> VecEnv:
    return DummyVecEnv([partial(walk, kind, lengths)] * count)


class Still(gym.Env[Any, Any]):
    """Random observations of any space, which depend on the seed; episodes that a limit cuts after ``length`` steps.

    ``outcomes``: whether the episodes succeed, in turn.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        length: int = 8,
        outcomes: tuple[bool, ...] | None = None,
    ) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.length, self.outcomes = length, outcomes
        self.t, self.episode = 0, -1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.t, self.episode = 0, self.episode + 1
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.t += 1
        ends = self.t >= self.length
        told = ends and self.outcomes is not None
        info = {"is_success": self.outcomes[self.episode % len(self.outcomes)]} if told and self.outcomes else {}
        return self.observation_space.sample(), 0.0, False, ends, info


class Rows(KVWriter):
    """Keeps what is logged, with its step."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        self.rows.append({"step": step} | key_values)

    def close(self) -> None:
        pass


@contextmanager
def listening(model: Any) -> Iterator[list[dict[str, Any]]]:
    """Within the block, the lines that the agent logs."""
    writer = Rows()
    model.set_logger(Logger(None, [writer]))
    yield writer.rows
