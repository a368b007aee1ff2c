"""CleanRL's ``ppo_trxl`` and MarcoMeter's ``episodic-transformer-memory-ppo``, which train here by their own programs.

Both come from the folder of sources (``tests/peers/sources.py``) and run unchanged on the environments of ours: this
file hands a ``VecEnv`` to them, stops between two updates and reads the policy. Both train for a fixed number of
updates, take vectors as observations and know discrete actions only. They import modules called ``trainer`` and
``utils``, so a process should train no more than one of them. Axes: E environments.
"""

import importlib
import itertools
import os
import random
import runpy
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from rltransformers.conformance.protocol import Traits
from tests.peers.adapters.episodic_memory import EpisodicMemory
from tests.peers.sources import SOURCES, Source

UPDATES = 10**5  # who looks on ends a training earlier


class EndTraining(Exception):  # noqa: N818  # as StopIteration
    """Raised in a watch to end the training of a peer."""


class Watch:
    """Told of the course of a training; raises ``EndTraining`` to end it."""

    def begins(self) -> None:
        """Before the first rollout."""

    def rollout_ends(self) -> None:
        """Between a rollout, its advantages included, and the update on it."""

    def update_ends(self, steps: int, policy: "Peer") -> None:
        """After every update: environment steps so far, and the policy in its present state."""


class Peer:
    """The policy of a peer with the ``predict`` of Stable-Baselines3, by its most likely actions."""

    def __init__(self, memory: EpisodicMemory, vectors: "Vectors") -> None:
        self.memory, self.vectors = memory, vectors

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[np.ndarray, Any]:
        """Actions [E], and the memory after them."""
        assert deterministic
        inputs = torch.as_tensor(self.vectors.of(observation))
        state = self.memory.reset(len(inputs)) if state is None else state
        first = torch.zeros(len(inputs), dtype=torch.bool) if episode_start is None else torch.as_tensor(episode_start)
        with torch.no_grad(), torch.random.fork_rng():  # CleanRL's agent samples whenever it is asked
            logits, state = self.memory.step(inputs, first, state)
        return logits.argmax(-1).numpy(), state


class Vectors:
    """Environments as the peers take them: vectors, one-hot where an observation is a number of a few; returns counted.

    Args:
        env: its episodes begin anew in the step that ends one.
        longest: steps of the longest episode, which sizes the memory of both peers.

    Raises:
        TypeError: for observations and actions of other kinds.
    """

    def __init__(self, env: VecEnv, longest: int) -> None:
        self.env, self.longest, self.num_envs = env, longest, env.num_envs
        observation, action = env.observation_space, env.action_space
        numbers = isinstance(observation, spaces.Discrete) or (
            isinstance(observation, spaces.Box) and len(observation.shape) == 1
        )
        if not numbers or not isinstance(action, spaces.Discrete):
            raise TypeError(f"peers take vectors or one of n, and discrete actions; got {observation}, {action}")
        self.observation_space = spaces.Box(-np.inf, np.inf, (spaces.flatdim(observation),), np.float32)
        self.action_space = action
        self.table = np.eye(observation.n, dtype=np.float32) if isinstance(observation, spaces.Discrete) else None

    def of(self, observations: Any) -> np.ndarray:
        """Observations [E, D]."""
        return np.asarray(observations, np.float32) if self.table is None else self.table[np.asarray(observations)]

    def reset(self) -> np.ndarray:
        """First observations [E, D]."""
        self.returns, self.lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, int)
        return self.of(self.env.reset())

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[tuple[float, int] | None]]:
        """Observations, rewards, ends, and return and length of the episodes that ended."""
        observations, rewards, dones, _ = self.env.step(actions)
        self.returns += rewards
        self.lengths += 1
        ended = [
            (float(total), int(length)) if done else None
            for total, length, done in zip(self.returns, self.lengths, dones, strict=True)
        ]
        self.returns[dones], self.lengths[dones] = 0.0, 0
        return self.of(observations), rewards, dones, ended


@dataclass(frozen=True)
class Program:
    """How to train a peer.

    Attributes:
        name: in tables.
        source: where it is read from.
        train: trains on environments with settings and a seed, and tells a watch of it.
        proof_of_memory: the settings that it publishes for that task.
        modules: that it imports.
    """

    name: str
    source: Source
    train: Callable[[Vectors, Mapping[str, Any], int, Watch], None]
    proof_of_memory: Mapping[str, Any]
    modules: tuple[str, ...]

    def load(self) -> None:
        """Import what it imports."""
        self.source.use()
        for module in self.modules:
            importlib.import_module(module)

    def run(self, env: VecEnv, longest: int, settings: Mapping[str, Any], seed: int, watch: Watch) -> None:
        """Train until the watch has seen enough."""
        self.load()
        before = os.getcwd()
        with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nothing, redirect_stdout(nothing):
            os.chdir(folder)  # both write logs
            try:
                self.train(Vectors(env, longest), settings, seed, watch)
            except EndTraining:
                return
            finally:
                os.chdir(before)


# CleanRL


class CleanRLEnvs:
    """``SyncVectorEnv`` of Gymnasium 0.29, as far as the program knows it."""

    def __init__(self, vectors: Vectors, watch: Watch) -> None:
        self.vectors, self.watch = vectors, watch
        self.single_observation_space, self.single_action_space = vectors.observation_space, vectors.action_space
        self.envs = [SimpleNamespace(spec=SimpleNamespace(max_episode_steps=vectors.longest))]

    def reset(self, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
        """First observations; the seed belongs to who made the environments."""
        self.watch.begins()
        return self.vectors.reset(), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """What follows; all ends are terminations, which is how the program takes either."""
        observations, rewards, dones, ended = self.vectors.step(actions.reshape(-1))
        infos = [None if each is None else {"episode": dict(zip("rl", each, strict=True))} for each in ended]
        return observations, rewards, dones, np.zeros_like(dones), {"final_info": infos} if dones.any() else {}

    def close(self) -> None:
        """Environments belong to who made them."""


class CleanRLLog:
    """In place of TensorBoard: the last line of an iteration is that on steps per second."""

    def __init__(self, vectors: Vectors, watch: Watch) -> None:
        self.vectors, self.watch = vectors, watch

    def add_text(self, tag: str, text: str) -> None:
        """Write nothing."""

    def add_scalar(self, tag: str, value: Any, step: int) -> None:
        """Write nothing."""
        if tag == "charts/SPS":
            self.watch.update_ends(step, cleanrl_policy(sys._getframe(1).f_globals, self.vectors))


def train_cleanrl(vectors: Vectors, settings: Mapping[str, Any], seed: int, watch: Watch) -> None:
    """Run ``ppo_trxl.py``, whose epochs begin with a permutation."""
    steps = UPDATES * vectors.num_envs * settings["num_steps"]
    options = {"env_id": "here", "num_envs": vectors.num_envs, "seed": seed, "total_timesteps": steps, **settings}
    arguments = ["ppo_trxl.py", "--no-cuda", *(f"--{name}={value}" for name, value in options.items())]
    drawn, epochs = torch.randperm, itertools.cycle(range(settings["update_epochs"]))

    def permutation(count: int) -> Tensor:
        if next(epochs) == 0:
            watch.rollout_ends()
        return drawn(count)

    with (
        mock.patch("sys.argv", arguments),
        mock.patch("gymnasium.vector.SyncVectorEnv", lambda _: CleanRLEnvs(vectors, watch)),
        mock.patch("torch.utils.tensorboard.SummaryWriter", lambda _: CleanRLLog(vectors, watch)),
        mock.patch("torch.randperm", permutation),
    ):
        runpy.run_path(str(Path(SOURCES["cleanrl"].folders[0]) / "ppo_trxl.py"), run_name="__main__")


def cleanrl_policy(names: Mapping[str, Any], vectors: Vectors) -> Peer:
    """The policy among the names of the running program."""
    agent, args = names["agent"], names["args"]

    def forward(inputs: Tensor, window: Tensor, mask: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        *_, new = agent.get_action_and_value(inputs, window, mask, indices)
        return agent.actor_branches[0](agent.x), new

    rows = (vectors.longest, args.trxl_num_layers, args.trxl_dim)
    select, mask, indices = (names[name] for name in ("batched_index_select", "memory_mask", "memory_indices"))
    return Peer(EpisodicMemory(Traits(full=None), agent, forward, select, mask, indices, rows, trims=True), vectors)


CLEANRL = Program(
    "CleanRL ppo_trxl",
    SOURCES["cleanrl"],
    train_cleanrl,
    {  # its documentation, but for the number of steps, 25,000
        "num_steps": 128, "num_minibatches": 8, "update_epochs": 4, "trxl_num_layers": 4, "trxl_num_heads": 1,
        "trxl_dim": 64, "trxl_memory_length": 16, "trxl_positional_encoding": "none", "vf_coef": 0.1,
        "max_grad_norm": 0.5, "init_lr": 3e-4, "init_ent_coef": 0.001, "clip_coef": 0.2,
    },
    ("memory_gym", "minigrid.wrappers", "pom_env", "torch.utils.tensorboard", "tyro"),
)  # fmt: skip


# MarcoMeter


class MarcoMeterEnvs:
    """Environments that are stepped at once when the last worker was sent its action."""

    def __init__(self, vectors: Vectors) -> None:
        self.vectors, self.actions, self.sent = vectors, np.zeros(vectors.num_envs, int), 0
        self.first = vectors.reset()

    def send(self, row: int, action: int) -> None:
        """Step when every environment has its action."""
        self.actions[row] = action
        self.sent += 1
        if self.sent == len(self.actions):
            self.sent = 0
            self.first, self.rewards, self.dones, self.ended = self.vectors.step(self.actions)

    def outcome(self, row: int) -> tuple[np.ndarray, float, bool, dict[str, float] | None]:
        """Of the newest step; the info tells of an episode that ended."""
        episode = self.ended[row]
        info = None if episode is None else dict(zip(("reward", "length"), episode, strict=True))
        return self.first[row], self.rewards[row], self.dones[row], info


class MarcoMeterWorker:
    """One of the environments behind the two calls that the trainer makes of the connection to a process."""

    def __init__(self, envs: MarcoMeterEnvs, row: int) -> None:
        self.envs, self.row, self.child = envs, row, self

    def send(self, message: tuple[str, Any]) -> None:
        """Step, or show the observation with which the environment began anew."""
        self.command, action = message
        if self.command == "step":
            self.envs.send(self.row, action[0])

    def recv(self) -> Any:
        """What the newest message asked for."""
        return self.envs.outcome(self.row) if self.command == "step" else self.envs.first[self.row]


def train_marcometer(vectors: Vectors, settings: Mapping[str, Any], seed: int, watch: Watch) -> None:
    """Run ``PPOTrainer``; a memory that is longer than an episode makes it count on longer ones."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    program = importlib.import_module("trainer")
    envs, rows = MarcoMeterEnvs(vectors), itertools.count()
    dummy = SimpleNamespace(
        observation_space=vectors.observation_space, action_space=vectors.action_space, close=lambda: None,
        max_episode_steps=max(vectors.longest, settings["transformer"]["memory_length"]),
    )  # fmt: skip

    class Watched(program.PPOTrainer):  # type: ignore[name-defined]
        steps = 0

        def _sample_training_data(self) -> Any:
            if self.steps:
                watch.update_ends(self.steps, marcometer_policy(self, vectors))
            else:
                watch.begins()
            episodes = super()._sample_training_data()
            self.steps += self.config["n_workers"] * self.config["worker_steps"]
            watch.rollout_ends()
            return episodes

    config = {**deepcopy(dict(settings)), "environment": {}, "n_workers": vectors.num_envs, "updates": UPDATES}
    with (
        mock.patch.object(program, "create_env", lambda _: dummy),
        mock.patch.object(program, "Worker", lambda _: MarcoMeterWorker(envs, next(rows))),
        mock.patch.object(program, "SummaryWriter", lambda _: SimpleNamespace(add_scalar=lambda *_: None)),
    ):
        Watched(config).run_training()


def marcometer_policy(trainer: Any, vectors: Vectors) -> Peer:
    """The policy of a trainer."""

    def forward(inputs: Tensor, window: Tensor, mask: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        policy, _, new = trainer.model(inputs, window, mask, indices)
        return policy[0].logits, new

    rows = (trainer.max_episode_length, trainer.num_blocks, trainer.embed_dim)
    select = importlib.import_module("utils").batched_index_select
    mask, indices = trainer.memory_mask, trainer.memory_indices
    memory = EpisodicMemory(Traits(full=None), trainer.model, forward, select, mask, indices, rows, trims=False)
    return Peer(memory, vectors)


CONSTANT = {"power": 1.0, "max_decay_steps": 200}
MARCOMETER = Program(
    "episodic-transformer-memory-ppo",
    SOURCES["episodic-transformer-memory-ppo"],
    train_marcometer,
    {  # configs/poc_memory_env.yaml, but for the number of updates, 200
        "gamma": 0.99, "lamda": 0.95, "epochs": 4, "worker_steps": 128, "n_mini_batch": 8,
        "value_loss_coefficient": 0.1, "hidden_layer_size": 64, "max_grad_norm": 0.5,
        "transformer": {
            "num_blocks": 4, "embed_dim": 64, "num_heads": 1, "memory_length": 32, "positional_encoding": "",
            "layer_norm": "pre", "gtrxl": True, "gtrxl_bias": 0.0,
        },
        "learning_rate_schedule": CONSTANT | {"initial": 3e-4, "final": 3e-4},
        "beta_schedule": CONSTANT | {"initial": 1e-3, "final": 1e-4},
        "clip_range_schedule": CONSTANT | {"initial": 0.2, "final": 0.2},
    },
    ("trainer",),
)  # fmt: skip
PROGRAMS = {"cleanrl": CLEANRL, "marcometer": MARCOMETER}
