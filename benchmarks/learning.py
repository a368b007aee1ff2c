"""How long an agent takes to learn a small memory task: ours and the LSTM of recurrent_ppo in turn, seed by seed.

Settings were chosen on seeds 100 and 101, from five tries each.
"""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks.harness import Pair, Row, absolute
from rltransformers.cli.agents import RunAgent, build_agent
from rltransformers.cli.configs import find_config
from rltransformers.training.runs.callback import score
from rltransformers.training.runs.experiment import EvaluationConfig, ExperimentConfig

LSTM = "recurrent_ppo (LSTM)"


@dataclass(frozen=True)
class Task:
    """A task that two packaged configs learn.

    Attributes:
        overrides: dotted settings of both.
        ours, lstm: dotted settings of gtrxl_cue_recall and of recurrent_ppo_cue_recall.
        aim: mean return over 100 episodes of the most likely actions that counts as learned.
        seconds: in which every seed of ours should get there.
    """

    title: str
    overrides: Mapping[str, str]
    ours: Mapping[str, str]
    lstm: Mapping[str, str]
    aim: float
    seconds: float

    def configs(self) -> tuple[ExperimentConfig, ExperimentConfig]:
        """Ours, and that of the LSTM."""
        evaluation = {"evaluation.episodes": "100", "evaluation.every": "1000"}
        every = dict(self.overrides) | evaluation | {"algorithm.learning_rate": "3e-3"}
        ours, lstm = every | SMALL | dict(self.ours), every | {"policy.lstm_hidden_size": "64"} | dict(self.lstm)
        names = ("gtrxl_cue_recall", "recurrent_ppo_cue_recall")
        first, second = (find_config(name, list(own.items()))[1] for name, own in zip(names, (ours, lstm), strict=True))
        return first, second


SMALL = {"backbone.width": "32", "backbone.layers": "1", "backbone.heads": "2"}
"""One layer of 32 channels learns both, at a rate that two of 64 do not stand."""
TASKS = (
    Task(
        "proof of memory",
        {
            "environment.id": "rltransformers/ProofOfMemory-v0",
            "environment.kwargs": "{}",
            "algorithm.n_steps": "32",
            "algorithm.gamma": "0.95",
            "train.total_timesteps": "25000",
        },
        {"backbone.memory": "8"},
        {"algorithm.batch_size": "128"},
        1.17,
        10.0,
    ),
    Task(
        "CueRecall, delay 16",
        {"algorithm.gamma": "0.5", "train.total_timesteps": "60000"},
        {"backbone.memory": "18"},
        {},
        0.95,
        20.0,
    ),
)


@dataclass(frozen=True)
class Learned:
    """Cost of one run until it reached the aim, or in all when it did not."""

    seconds: float
    steps: int
    reached: bool


def time_to_learn(*, repetitions: int = 10) -> Iterator[Row]:
    """Processor seconds of collecting and learning from the first step on, evaluations left out; a seed each time."""
    for task in TASKS:
        ours, lstm = task.configs()
        for config in (ours, lstm):
            learned(replace(config, train=replace(config.train, total_timesteps=1)), task.aim)  # first uses are slow
        runs = [
            [learned(replace(config, seed=seed), task.aim) for config in (ours, lstm)] for seed in range(repetitions)
        ]
        mine, theirs = [list(column) for column in zip(*runs, strict=True)]
        setting = f"mean return {task.aim:g} over 100 episodes, {repetitions} seeds, at most {ours.steps:,} steps"
        note = f"ours {note_of(mine)}; LSTM {note_of(theirs)}"
        pair = Pair([each.seconds for each in mine], [each.seconds for each in theirs])
        yield pair.row(f"time to learn: {task.title}", setting, "s", LSTM, "", note=note)
        slowest, name = max(each.seconds if each.reached else np.inf for each in mine), f"{task.title}, slowest seed"
        yield absolute(f"time to learn: {name}", setting, "s", [slowest], f"<= {task.seconds:g}", note=note_of(mine))


def learned(config: ExperimentConfig, aim: float) -> Learned:
    """Train until an evaluation reaches the aim, or to the end of the config."""
    agent = build_agent(config)
    try:
        watch = _Watch(agent, config.evaluation, aim)
        agent.learn(config.steps, watch, progress=False)
        watch.look()
        return Learned(watch.seconds, watch.model.num_timesteps, watch.reached)
    finally:
        agent.close()


def note_of(runs: Sequence[Learned]) -> str:
    """How many runs got there, and after how many steps."""
    steps = [run.steps for run in runs if run.reached]
    span = f" after {min(steps):,} to {max(steps):,} steps (median {statistics.median(steps):,.0f})" if steps else ""
    return f"{len(steps)} of {len(runs)}{span}"


class _Watch(BaseCallback):
    """Evaluates between updates, with the clock stopped, and ends the training when the aim is reached."""

    def __init__(self, agent: RunAgent, evaluation: EvaluationConfig, aim: float) -> None:
        super().__init__()
        self.agent, self.evaluation, self.aim = agent, evaluation, aim
        self.seconds, self.reached, self._began, self._looks = 0.0, False, time.process_time(), 0

    def _on_rollout_start(self) -> None:
        self.look()

    def look(self) -> None:
        """Evaluate the present weights, unless they were never trained."""
        self.seconds += time.process_time() - self._began
        step, every = self.model.num_timesteps, self.evaluation.every
        if not self.reached and step // every > self._looks:
            self._looks = step // every
            self.reached = score(self.agent.evaluate(self.evaluation)) >= self.aim
        self._began = time.process_time()

    def _on_step(self) -> bool:
        return not self.reached
