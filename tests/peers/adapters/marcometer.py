"""Trainers of MarcoMeter's repositories, on environments in this process in place of one each."""

import contextlib
import importlib
import io
import os
import tempfile
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from gymnasium import spaces

from rltransformers.conformance.adapters.rollouts import ACTIONS, LIMITS, OBSERVATION, ROLLOUT, Limited, shaken
from rltransformers.conformance.protocol import Bootstrap

NO_FILE = "the program stores weights, and reads them to show episodes only"
EXEMPT = {"saved in mid-episode": NO_FILE, "stopped run keeps memory": NO_FILE}


class Environment:
    """As those of the repository: an end is an end, whether a limit cut or not. Remembers its episode."""

    observation_space = spaces.Box(-np.inf, np.inf, (OBSERVATION,), np.float32)
    action_space = spaces.Discrete(ACTIONS)
    max_episode_steps = max(LIMITS)

    def __init__(self, row: int) -> None:
        self.env = Limited(LIMITS[row])
        self.episode: list[np.ndarray] = []
        self.env.reset(seed=row)

    def reset(self) -> np.ndarray:
        self.episode = [self.env.reset()[0]]
        return self.episode[0]

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, dict[str, Any] | None]:
        observation, reward, _, cut, _ = self.env.step(action[0])
        self.episode.append(observation)
        return observation, reward, cut, {"reward": 0.0, "length": self.env.length} if cut else None

    def close(self) -> None:
        pass


class Worker:
    """An environment behind the two calls that the trainer makes of the connection to a process."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.env, self.child = Environment(next(config["rows"])), SimpleNamespace(send=self._send, recv=self._receive)

    def _send(self, message: tuple[str, Any]) -> None:
        command, action = message
        self.answer: Any = self.env.step(action) if command == "step" else self.env.reset()

    def _receive(self) -> Any:
        return self.answer


def trainer(**settings: Any) -> Any:
    """The ``PPOTrainer`` of the repository in ``sys.path``, whose weights are shaken and do not learn."""
    constant = {"initial": 0.0, "final": 0.0, "power": 1.0, "max_decay_steps": 1}
    config = {
        "environment": {"type": "here", "rows": iter(range(len(LIMITS)))},
        "gamma": 0.9, "lamda": 0.95, "n_workers": len(LIMITS), "worker_steps": ROLLOUT, "n_mini_batch": 1,
        **{f"{name}_schedule": constant for name in ("learning_rate", "beta", "clip_range")}, **settings,
    }  # fmt: skip
    program = importlib.import_module("trainer")
    before = os.getcwd()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
        mock.patch.object(program, "create_env", lambda config: Environment(0)),
        mock.patch.object(program, "Worker", Worker),
    ):
        os.chdir(folder)  # it writes for TensorBoard
        try:
            made = program.PPOTrainer(config)
            made.writer.close()
        finally:
            os.chdir(before)
    shaken(made.model.parameters())
    return made


def ends_of_rollout(trainer: Any, values: torch.Tensor) -> Sequence[Bootstrap]:
    """Values [E] behind the newest rollout; an episode that a limit cuts has ended to these programs."""
    episodes = [torch.as_tensor(np.stack(worker.env.episode)) for worker in trainer.workers]
    return [
        Bootstrap(episode, value, f"environment {row}, end of the rollout")
        for row, (episode, value) in enumerate(zip(episodes, values.tolist(), strict=True))
    ]
