"""How long agents take to learn small memory tasks: ours, the LSTM of recurrent_ppo and two transformer peers.

Every system has one setting for all tasks. Ours was chosen on seed 100 of two of them from eight tries, the LSTM's from
two on one of them (docs/lab/time_to_learn.md); the peers have the ones that they publish for proof of memory.
"""

import math
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks.harness import Pair, Row, absolute
from benchmarks.peers import PROGRAMS, EndTraining, Peer, Watch
from rltransformers.cli.agents import build_agent
from rltransformers.cli.collect import make_environment
from rltransformers.cli.configs import find_config
from rltransformers.core.errors import ConfigError, did_you_mean
from rltransformers.training.evaluation import evaluate_online
from rltransformers.training.runs.callback import score
from rltransformers.training.runs.experiment import ExperimentConfig

OURS, LSTM = "gtrxl_ppo", "recurrent_ppo"
SETTINGS: dict[str, dict[str, str]] = {
    OURS: {
        "backbone.preset": "gtrxl", "backbone.width": "64", "backbone.layers": "1", "backbone.heads": "4",
        "backbone.memory": "32", "algorithm.n_steps": "64", "algorithm.learning_rate": "1e-3",
    },
    LSTM: {
        "policy.lstm_hidden_size": "64", "policy.net_arch": "{pi: [64], vf: [64]}", "algorithm.n_steps": "128",
        "algorithm.batch_size": "512", "algorithm.n_epochs": "4", "algorithm.learning_rate": "1e-3",
        "algorithm.ent_coef": "0.01",
    },
}  # fmt: skip
NAMES = {LSTM: "recurrent_ppo (LSTM)"} | {name: program.name for name, program in PROGRAMS.items()}
ENVS = 16
LONGEST = 60.0
"""Processor seconds after which a run is given up."""
ENOUGH_MISSES = 2
"""A system that was given up this often gets no further seeds of a task."""
NO_LIMIT = 10**8


@dataclass(frozen=True)
class Task:
    """A task for all systems.

    Attributes:
        title: in tables.
        environment: dotted settings of it.
        longest: steps of its longest episode.
        aim: mean return over 100 episodes of the most likely actions that counts as learned.
        every: steps between two evaluations at least; they follow an update.
        peers: whether actions are discrete, as the transformer peers need them.
        seconds: in which every seed of ours should get there; None for no target.
    """

    title: str
    environment: Mapping[str, str]
    longest: int
    aim: float
    every: int = 1000
    peers: bool = True
    seconds: float | None = None

    def config(self, agent: str, seed: int) -> ExperimentConfig:
        """Of an agent that the command line knows."""
        course = {
            "agent": agent, "seed": str(seed), "environment.num_envs": str(ENVS), "evaluation.episodes": "100",
            "train.total_timesteps": str(NO_LIMIT),
        }  # fmt: skip
        return find_config("defaults", list((course | dict(self.environment) | SETTINGS[agent]).items()))[1]

    @property
    def systems(self) -> list[str]:
        """Those that can learn it here, ours first."""
        return [OURS, LSTM, *(name for name, program in PROGRAMS.items() if self.peers and program.source.exists)]


MASKED = {"environment.wrappers": "[{name: DropIndices, indices: velocities}]"}
TASKS = {
    "proof_of_memory": Task(
        "proof of memory", {"environment.id": "rltransformers/ProofOfMemory-v0"}, 16, 1.17, seconds=10.0
    ),
    "cue_recall": Task(
        "CueRecall, delay 16",
        {"environment.id": "rltransformers/CueRecall-v0", "environment.kwargs": "{delay: 16}"},
        18, 0.95, seconds=20.0,
    ),
    "cartpole_masked": Task(
        "CartPole without velocities", {"environment.id": "CartPole-v1"} | MASKED, 500, 475.0, every=8000
    ),
    "repeat_previous": Task(
        "RepeatPreviousEasy", {"environment.id": "popgym-RepeatPreviousEasy-v0"}, 52, 0.9, every=4000
    ),
    "pendulum_masked": Task(
        "Pendulum without velocity", {"environment.id": "Pendulum-v1"} | MASKED, 200, -200.0, every=8000, peers=False
    ),
}  # fmt: skip


@dataclass
class Learned:
    """Cost of one run until it reached the aim, or in all when it did not."""

    seconds: float = 0.0
    steps: int = 0
    reached: bool = False


@dataclass
class Clock:
    """Processor seconds of collecting and learning, evaluations left out."""

    task: Task
    limit: float
    run: Learned = field(default_factory=Learned)
    looks: int = 0
    began: float = 0.0

    def start(self) -> None:
        """Go on counting."""
        self.began = time.process_time()

    def goes_on(self, steps: int, evaluate: Callable[[], float]) -> bool:
        """Evaluate between updates where it is time to, and say whether the training goes on."""
        run = self.run
        run.seconds, run.steps = run.seconds + time.process_time() - self.began, steps
        if self.limit and steps // self.task.every > self.looks:
            self.looks = steps // self.task.every
            run.reached = evaluate() >= self.task.aim
        self.start()
        return not run.reached and run.seconds < self.limit


def time_to_learn(*, repetitions: int = 5, only: Sequence[str] | None = None) -> Iterator[Row]:
    """Seconds from the first step on, seed by seed; a row per task and system beside ours.

    Raises:
        ConfigError: for an unknown task.
    """
    for name in only or ():
        if name not in TASKS:
            raise ConfigError(f"unknown task {name!r}; {did_you_mean(name, TASKS)}")
    for program in PROGRAMS.values():
        if not program.source.exists:
            print(f"{program.name}: not run; {program.source.how}")
    with ExitStack() as stack:
        spawned = multiprocessing.get_context("spawn")
        processes = {
            system: stack.enter_context(ProcessPoolExecutor(1, mp_context=spawned))
            for system in (OURS, LSTM, *PROGRAMS)
        }
        for name in only or TASKS:
            yield from rows_of(name, repetitions, processes)


def rows_of(name: str, repetitions: int, processes: Mapping[str, ProcessPoolExecutor]) -> Iterator[Row]:
    """Runs of all systems on a task, in turn, each system in its process."""
    task = TASKS[name]
    runs: dict[str, list[Learned]] = {system: [] for system in task.systems}
    for seed in range(repetitions):
        for system, done in runs.items():
            if sum(not run.reached for run in done) < ENOUGH_MISSES:
                done.append(processes[system].submit(learned, system, name, seed).result())
                print(f"  {task.title}, {system}, seed {seed}: {done[-1]}", flush=True)
    mine = runs.pop(OURS)
    for system, theirs in runs.items():
        count = min(len(mine), len(theirs))
        pair = Pair([run.seconds for run in mine[:count]], [run.seconds for run in theirs[:count]])
        note = f"ours {note_of(mine)}; {NAMES[system]} {note_of(theirs)}"
        yield pair.row(f"time to learn: {task.title}", setting_of(task), "s", NAMES[system], "", note=note)
    slowest = max(run.seconds if run.reached else math.inf for run in mine)
    target = "" if task.seconds is None else f"<= {task.seconds:g}"
    title = f"time to learn: {task.title}, slowest seed"
    yield absolute(title, setting_of(task), "s", [slowest], target, note=note_of(mine))


def setting_of(task: Task) -> str:
    """What counts as learned, and when a run is given up."""
    return f"mean return {task.aim:g} over 100 episodes, at most {LONGEST:g} processor seconds"


def note_of(runs: Sequence[Learned]) -> str:
    """How many runs got there, and after how many steps; how many steps the others had."""
    steps = [run.steps for run in runs if run.reached]
    text = f"{len(steps)} of {len(runs)}"
    if steps:
        text += f" after {min(steps):,} to {max(steps):,} steps (median {statistics.median(steps):,.0f})"
    missed = [run.steps for run in runs if not run.reached]
    return text + (f", not within {min(missed):,} steps" if missed else "")


def learned(system: str, name: str, seed: int) -> Learned:
    """Train until an evaluation reaches the aim, or until the time is over; first uses are slow and do not count."""
    torch.set_num_threads(1)
    task, train = TASKS[name], train_peer if system in PROGRAMS else train_agent
    warm_up(system, name)
    clock = Clock(task, LONGEST)
    train(system, task, seed, clock)
    return clock.run


@lru_cache
def warm_up(system: str, name: str) -> None:
    """One update, once in a process."""
    task, train = TASKS[name], train_peer if system in PROGRAMS else train_agent
    train(system, task, 0, Clock(task, 0.0))


def train_agent(system: str, task: Task, seed: int, clock: Clock) -> None:
    """Train an agent that the command line knows."""
    config = task.config(system, seed)
    agent = build_agent(config)
    try:
        agent.learn(config.steps, _Callback(clock, lambda: score(agent.evaluate(config.evaluation))), progress=False)
    finally:
        agent.close()


class _Callback(BaseCallback):
    """Looks between updates, and ends the training when the clock says so."""

    def __init__(self, clock: Clock, evaluate: Callable[[], float]) -> None:
        super().__init__()
        self.clock, self.evaluate, self.goes_on = clock, evaluate, True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps:
            self.goes_on = self.clock.goes_on(self.num_timesteps, self.evaluate)
        else:
            self.clock.start()

    def _on_step(self) -> bool:
        return self.goes_on


def train_peer(system: str, task: Task, seed: int, clock: Clock) -> None:
    """Train a transformer peer on environments that the config of ours describes."""
    config, program = task.config(OURS, seed), PROGRAMS[system]
    evaluation = config.evaluation
    with (
        closing(make_environment(config.environment, seed)) as env,
        closing(make_environment(config.environment, evaluation.seed)) as other,
    ):

        def evaluate(policy: Peer) -> float:
            result = evaluate_online(policy, other, config.environment.id, evaluation.episodes, evaluation.seed)
            return score([result])

        program.run(env, task.longest, program.proof_of_memory, seed, _Watch(clock, evaluate))


class _Watch(Watch):
    """The same between updates of a peer."""

    def __init__(self, clock: Clock, evaluate: Callable[[Peer], float]) -> None:
        self.clock, self.evaluate = clock, evaluate

    def begins(self) -> None:
        self.clock.start()

    def update_ends(self, steps: int, policy: Peer) -> None:
        if not self.clock.goes_on(steps, lambda: self.evaluate(policy)):
            raise EndTraining
