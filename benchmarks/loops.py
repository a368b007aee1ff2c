"""Whole iterations of online agents with memory: ours, RecurrentPPO, two transformer peers.

Every system runs in a process of its own (``loops.py SYSTEM``), which does one iteration for every line that it reads;
the processes take turns. Seconds are those of the processor. Memory is the peak of the process above what it held
before the agent was made.
"""

import importlib
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from benchmarks import past
from benchmarks.harness import Pair, Row, parameters, resident_bytes
from benchmarks.online import ACTIONS, ENVS, MEGABYTE, OBSERVATIONS, PUBLISHED_FF_WIDTH, SMALL
from benchmarks.peers import PROGRAMS, EndTraining, Peer, Watch
from rltransformers.agents import GTrXLPPO
from rltransformers.policies.steps import Acting

STEPS, LENGTH = 512, 128
SHARED: dict[str, Any] = {
    "n_steps": STEPS, "batch_size": 2 * STEPS, "n_epochs": 3, "gamma": 0.99, "learning_rate": 3e-4, "seed": 0,
    "device": "cpu",
}  # fmt: skip
LINES = 10**6  # iterations at most


class CueEnvs(VecEnv):
    """Environments that cost almost nothing: the first observation names the action that is right until the end.

    Observations are four channels for the cue and four of noise from a table; episodes last ``length`` steps, and their
    ends are spread evenly over the environments.
    """

    def __init__(self, num_envs: int, length: int = LENGTH, seed: int = 0) -> None:
        super().__init__(num_envs, OBSERVATIONS, ACTIONS)
        self.length = length
        self.generator = np.random.default_rng(seed)
        self.noise = self.generator.uniform(-1.0, 1.0, (256, num_envs, 4)).astype(np.float32)
        self.quiet: list[dict[str, Any]] = [{} for _ in range(num_envs)]
        self.clock = 0

    def reset(self) -> np.ndarray:
        """Begin everywhere; environment i starts at age i length / num_envs."""
        self.age = np.arange(self.num_envs) * self.length // self.num_envs
        self.cue = self.generator.integers(4, size=self.num_envs)
        observations = self.observe()
        observations[np.arange(self.num_envs), self.cue] = 1.0
        return observations

    def observe(self) -> np.ndarray:
        """Noise, and no cue."""
        self.clock = (self.clock + 1) % len(self.noise)
        observations = np.zeros((self.num_envs, 8), np.float32)
        observations[:, 4:] = self.noise[self.clock]
        return observations

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the actions for ``step_wait``."""
        self.actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Step all; a row that ends shows the first observation of its next episode."""
        rewards = (self.actions == self.cue).astype(np.float32)
        self.age += 1
        dones = self.age == self.length
        observations = self.observe()
        infos = self.quiet
        if dones.any():
            ended = np.flatnonzero(dones)
            infos = list(infos)
            for index in ended:
                infos[index] = {"terminal_observation": observations[index].copy()}
            self.age[ended] = 0
            self.cue[ended] = self.generator.integers(4, size=len(ended))
            observations[ended, self.cue[ended]] = 1.0
        return observations, rewards, dones, infos

    def close(self) -> None:
        """Nothing is open."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """The same answer for every environment."""
        return [None if attr_name == "render_mode" else getattr(self, attr_name)] * len(
            list(self._get_indices(indices))
        )

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Environments share their attributes."""
        setattr(self, attr_name, value)

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """Environments have no methods of their own."""
        raise AttributeError(f"the environments of this benchmark have no method {method_name!r}")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """They never are."""
        return [False] * len(list(self._get_indices(indices)))


# Systems


@dataclass(frozen=True)
class System:
    """An agent of this library or of sb3-contrib, or a peer that is read from a folder.

    Attributes:
        title: in the rows.
        size: of the network, in words.
        backbone: settings of ours.
        acting: of ours.
        lstm: settings of RecurrentPPO's policy.
        peer: name and settings of a transformer peer.
    """

    title: str
    size: str
    backbone: Mapping[str, Any] | None = None
    acting: Acting = "eager"
    lstm: Mapping[str, Any] | None = None
    peer: tuple[str, Mapping[str, Any]] | None = None

    @property
    def exists(self) -> bool:
        """Whether it can run here."""
        return self.peer is None or PROGRAMS[self.peer[0]].source.exists

    def load(self) -> None:
        """Import what only some systems import, or only when they begin to learn."""
        importlib.import_module("torch._dynamo")
        if self.peer is not None:
            PROGRAMS[self.peer[0]].load()

    def run(self, turns: "Turns") -> None:
        """Train as long as there are lines to read."""
        if self.peer is not None:
            program, settings = self.peer
            PROGRAMS[program].run(CueEnvs(ENVS), LENGTH, settings, 0, turns)
            return
        model: GTrXLPPO | RecurrentPPO
        if self.backbone is not None:
            kwargs = {"backbone": dict(self.backbone)}
            model = GTrXLPPO(
                "GTrXLPolicy", CueEnvs(ENVS), acting=self.acting, updates=self.acting, policy_kwargs=kwargs, **SHARED
            )
        else:
            model = RecurrentPPO("MlpLstmPolicy", CueEnvs(ENVS), policy_kwargs=dict(self.lstm or {}), **SHARED)
        model.learn(LINES * ENVS * STEPS, callback=TurnsOfAgent(turns))


TRXL = "2 layers, width 64, 4 heads, memory 64"
OURS_64 = SMALL | {"ff_width": PUBLISHED_FF_WIDTH}
USUAL_LSTM = {"lstm_hidden_size": 64}  # what a user of sb3-contrib gets
LEAN_LSTM = {"lstm_hidden_size": 64, "shared_lstm": True, "enable_critic_lstm": False, "net_arch": []}
CLEANRL = {
    "num_steps": STEPS, "num_minibatches": ENVS // 2, "update_epochs": 3, "trxl_num_layers": 2, "trxl_num_heads": 4,
    "trxl_dim": 64, "trxl_memory_length": 64, "init_lr": 3e-4, "gamma": 0.99,
}  # fmt: skip
MARCOMETER = dict(PROGRAMS["marcometer"].proof_of_memory) | {
    "worker_steps": STEPS, "n_mini_batch": ENVS // 2, "epochs": 3,
    "transformer": {
        "num_blocks": 2, "embed_dim": 64, "num_heads": 4, "memory_length": 64, "positional_encoding": "relative",
        "layer_norm": "pre", "gtrxl": True, "gtrxl_bias": 0.0,
    },
}  # fmt: skip
SYSTEMS = {
    "ours": System("GTrXL loop", f"{TRXL}, ff_width 64", OURS_64),
    "compiled": System("GTrXL loop, compiled", f"{TRXL}, ff_width 64", OURS_64, "compiled"),
    "wide": System("GTrXL loop", f"{TRXL}, ff_width 256 (the default)", SMALL),
    "lstm": System("RecurrentPPO", "an LSTM of 64 each for actor and critic, heads 64-64", lstm=USUAL_LSTM),
    "lean": System("RecurrentPPO", "one LSTM of 64 for both, no hidden layers", lstm=LEAN_LSTM),
    "cleanrl": System(PROGRAMS["cleanrl"].name, f"{TRXL}, no gates", peer=("cleanrl", CLEANRL)),
    "marcometer": System(PROGRAMS["marcometer"].name, f"{TRXL}, gates", peer=("marcometer", MARCOMETER)),
}
PAIRS = (
    ("ours", "lstm", ">= 2.2", ">= 0.8"),
    ("compiled", "lstm", ">= 3", ">= 1.2"),
    ("wide", "lstm", "", ""),
    ("ours", "lean", "", ""),
    ("ours", "cleanrl", "", ""),
    ("compiled", "cleanrl", "", ""),
    ("ours", "marcometer", "", ""),
    ("compiled", "marcometer", "", ""),
)
"""Ours, what it is compared with, and targets of loop and rollout, which belong to the published small size."""


def gtrxl_loop(*, repetitions: int = 5) -> Iterator[Row]:
    """Collect and update: steps per second of whole iterations, of rollouts and of updates, and memory."""
    for system in SYSTEMS.values():
        if system.peer is not None and not system.exists:
            print(f"{system.title}: not run; {PROGRAMS[system.peer[0]].source.how}")
    turns: dict[str, list[dict[str, float]]] = {name: [] for name, system in SYSTEMS.items() if system.exists}
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(closing(past.Worker(past.ROOT, name, program=Path(__file__)))) for name in turns
        }
        for _ in range(repetitions):
            for name, worker in workers.items():
                turns[name].append(json.loads(worker.ask()))
    for ours, peer, *targets in PAIRS:
        if peer in turns:
            yield from rows_of(ours, peer, turns, *targets)


def rows_of(
    ours: str, peer: str, turns: Mapping[str, list[dict[str, float]]], target: str, rollout_target: str
) -> Iterator[Row]:
    """Of one pair."""
    mine, theirs = SYSTEMS[ours], SYSTEMS[peer]
    counts = [int(turns[name][0]["parameters"]) for name in (ours, peer)]
    setting = (
        f"{ENVS} envs x {STEPS} steps, episodes of {LENGTH}, 3 epochs, batches of {2 * STEPS}; ours {mine.size}, "
        f"{counts[0]} parameters; peer {theirs.size}, {counts[1]} parameters"
    )
    for part, bound in (("whole", target), ("rollout", rollout_target), ("update", "")):
        pair = Pair([turn[part] for turn in turns[ours]], [turn[part] for turn in turns[peer]])
        name = mine.title if part == "whole" else f"{mine.title}: {part}"
        row = pair.row(name, setting, "steps/s", theirs.title, bound)
        yield replace(row, ours=ENVS * STEPS / row.ours, peer=ENVS * STEPS / row.peer)
    if mine.acting == "eager":
        held, peer_held = (
            statistics.median(turn["memory"] for turn in turns[name]) / MEGABYTE for name in (ours, peer)
        )
        ratio = peer_held / held
        note = "peak of the process above what it held before the agent was made; the ratio is peer / ours"
        yield Row(f"{mine.title}: memory", setting, "MB", held, peer_held, theirs.title, ratio, ratio, ratio, note=note)


# The processes


class Turns(Watch):
    """An iteration for every line of standard input, answered by what it took; the first one comes without a line."""

    def __init__(self) -> None:
        self.answers, self.before = sys.stdout, resident_bytes("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew

    def begins(self) -> None:
        """Start counting."""
        self.began = time.process_time()

    def rollout_ends(self) -> None:
        """Note the time."""
        self.rollout = time.process_time() - self.began

    def update_ends(self, steps: int, policy: Peer) -> None:
        """Answer, and wait for the next line."""
        self.answer(sum(weight.numel() for weight in policy.memory.weights()))

    def answer(self, parameters: int) -> None:
        """Write seconds, bytes and the number of parameters; wait for the next line."""
        whole = time.process_time() - self.began
        parts = {"whole": whole, "rollout": self.rollout, "update": whole - self.rollout}
        memory = resident_bytes("VmHWM") - self.before
        print(json.dumps(parts | {"memory": memory, "parameters": parameters}), file=self.answers, flush=True)
        if not sys.stdin.readline():
            raise EndTraining
        self.begins()


class TurnsOfAgent(BaseCallback):
    """The same for an algorithm of Stable-Baselines3."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self.turns = turns

    def _on_rollout_start(self) -> None:
        if self.num_timesteps:
            self.turns.answer(parameters(self.model.policy))
        else:
            self.turns.begins()

    def _on_rollout_end(self) -> None:
        self.turns.rollout_ends()

    def _on_step(self) -> bool:
        return True


def main(system: str) -> None:
    """Be the process of a system."""
    torch.set_num_threads(1)
    SYSTEMS[system].load()
    with suppress(EndTraining):
        SYSTEMS[system].run(Turns())


if __name__ == "__main__":
    main(sys.argv[1])
