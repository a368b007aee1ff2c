"""Tasks of ``time-to-learn``: how each system is trained on them, until a clock ends the training.

Online, every system has one setting for all tasks. Ours was chosen on seed 100 of two of them from eight tries, the
LSTM's from two on one of them (docs/lab/time_to_learn.md); the peers have the ones that they publish for proof of
memory. Offline, ours has the config of the task, and the peers its data, updates, batch, context and sizes.
"""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from importlib.util import find_spec

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks import peers, returns
from benchmarks.peers import PROGRAMS, EndTraining, Peer
from rltransformers.cli.agents import build_agent
from rltransformers.cli.collect import collect_episodes, make_environment
from rltransformers.cli.configs import find_config
from rltransformers.core.errors import DataError
from rltransformers.data import Trajectories, load_trajectories
from rltransformers.training.evaluation import evaluate_online
from rltransformers.training.runs.callback import score
from rltransformers.training.runs.experiment import ExperimentConfig

OURS, LSTM, OURS_OFFLINE = "gtrxl_ppo", "recurrent_ppo", "decision_transformer"
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
NAMES = (
    {LSTM: "recurrent_ppo (LSTM)"}
    | {name: program.name for name, program in PROGRAMS.items()}
    | {name: f"{name} Decision Transformer" for name in returns.PEERS}
)
"""Of the systems beside ours, in tables."""
ENVS = 16
LONGEST = 60.0
"""Processor seconds after which a run of an online task is given up."""
NO_LIMIT = 10**8


@dataclass
class Learned:
    """Cost of one run until it reached the aim, or in all when it did not."""

    seconds: float = 0.0
    steps: int = 0
    reached: bool = False


@dataclass
class Clock:
    """Processor seconds of collecting and learning, evaluations left out."""

    task: "OnlineTask | OfflineTask"
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


# Online


@dataclass(frozen=True)
class OnlineTask:
    """A task that is learned by acting.

    Attributes:
        title: in tables.
        environment: dotted settings of it.
        longest: steps of its longest episode.
        aim: mean return over 100 episodes of the most likely actions that counts as learned.
        every: steps between two evaluations at least; they follow an update.
        peers: whether actions are discrete, as the transformer peers need them.
        seconds: in which every seed of ours should get there; None for no target.
        limit: processor seconds after which a run is given up.
        needs: a package that is no dependency.
    """

    title: str
    environment: Mapping[str, str]
    longest: int
    aim: float
    every: int = 1000
    peers: bool = True
    seconds: float | None = None
    limit: float = LONGEST
    needs: str | None = None
    unit: str = "steps"

    @property
    def setting(self) -> str:
        """The aim, and the limit in seconds."""
        return f"mean return {self.aim:g} over 100 episodes, at most {self.limit:g} processor seconds"

    @property
    def missing(self) -> str | None:
        """How to install the package."""
        installed = self.needs is None or find_spec(self.needs) is not None
        return None if installed else f'pip install "rltransformers[{self.needs}]"'

    @property
    def systems(self) -> list[str]:
        """Agents of the command line, and the programs whose folders are there."""
        return [OURS, LSTM, *(name for name, program in PROGRAMS.items() if self.peers and program.source.exists)]

    def config(self, agent: str, seed: int) -> ExperimentConfig:
        """Of an agent that the command line knows."""
        course = {
            "agent": agent, "seed": str(seed), "environment.num_envs": str(ENVS), "evaluation.episodes": "100",
            "train.total_timesteps": str(NO_LIMIT),
        }  # fmt: skip
        return find_config("defaults", list((course | dict(self.environment) | SETTINGS[agent]).items()))[1]

    def train(self, system: str, seed: int, clock: Clock) -> None:
        """Train an agent, or a program on environments that the config of ours describes."""
        if system not in PROGRAMS:
            train_agent(self.config(system, seed), clock)
            return
        config, program = self.config(OURS, seed), PROGRAMS[system]
        evaluation = config.evaluation
        with (
            closing(make_environment(config.environment, seed)) as env,
            closing(make_environment(config.environment, evaluation.seed)) as other,
        ):

            def evaluate(policy: Peer) -> float:
                result = evaluate_online(policy, other, config.environment.id, evaluation.episodes, evaluation.seed)
                return score([result])

            program.run(env, self.longest, program.proof_of_memory, seed, _Watch(clock, evaluate))


def train_agent(config: ExperimentConfig, clock: Clock) -> None:
    """Train an agent that the command line knows, online or offline."""
    agent = build_agent(config)
    try:
        callback = _Callback(clock, agent.online, lambda: score(agent.evaluate(config.evaluation)))
        agent.learn(config.steps, callback, progress=False)
    finally:
        agent.close()


class _Callback(BaseCallback):
    """Looks between updates, and ends the training when the clock says so."""

    def __init__(self, clock: Clock, online: bool, evaluate: Callable[[], float]) -> None:
        super().__init__()
        self.clock, self.online, self.evaluate, self.going = clock, online, evaluate, True

    def _on_training_start(self) -> None:
        self.clock.start()

    def _on_rollout_start(self) -> None:
        if self.num_timesteps:
            self.going = self.clock.goes_on(self.num_timesteps, self.evaluate)
        else:
            self.clock.start()

    def _on_step(self) -> bool:
        return self.going if self.online else self.clock.goes_on(self.num_timesteps, self.evaluate)


class _Watch(peers.Watch):
    """The same between updates of a peer."""

    def __init__(self, clock: Clock, evaluate: Callable[[Peer], float]) -> None:
        self.clock, self.evaluate = clock, evaluate

    def begins(self) -> None:
        self.clock.start()

    def update_ends(self, steps: int, policy: Peer) -> None:
        if not self.clock.goes_on(steps, lambda: self.evaluate(policy)):
            raise EndTraining


# Offline


@dataclass(frozen=True)
class OfflineTask:
    """A recording from which Decision Transformers learn; a run is given up after the updates of the config.

    Attributes:
        title: in tables.
        name: of the config of ours.
        target: return that is asked for.
        aim: mean return over the episodes that counts as learned; of several ways to choose actions the best counts.
        every: updates between two evaluations.
        episodes: of an evaluation.
    """

    title: str
    name: str
    target: float
    aim: float
    every: int
    episodes: int
    seconds: float | None = None
    limit: float = math.inf
    unit: str = "updates"

    @property
    def setting(self) -> str:
        """The aim, and the limit in updates."""
        return (
            f"mean return {self.aim:g} over {self.episodes} episodes when asked for {self.target:g}, at most "
            f"{self.config(0).steps:,} updates"
        )

    @property
    def missing(self) -> str | None:
        """How to record the data."""
        try:
            self.data(0)
        except DataError as error:
            return f"{error}; configs/{self.name}.yaml says how to record it"
        return None

    @property
    def systems(self) -> list[str]:
        """Ours, and the peers that are installed."""
        return [OURS_OFFLINE, *(name for name, peer in returns.PEERS.items() if peer.installed)]

    def config(self, seed: int) -> ExperimentConfig:
        """The config of ours, asked for one return."""
        course = {"seed": seed, "evaluation.target_returns": [self.target], "evaluation.episodes": self.episodes}
        return find_config(self.name, [(name, str(value)) for name, value in course.items()])[1]

    def data(self, seed: int) -> Trajectories:
        """The recording, as ours reads it or makes it with the seed."""
        config = self.config(seed)
        dataset = config.dataset
        assert dataset is not None
        if dataset.collect is not None:
            return collect_episodes(config.environment, dataset.collect, seed)
        assert dataset.id is not None
        return load_trajectories(dataset.id)

    def train(self, system: str, seed: int, clock: Clock) -> None:
        """Train ours by its config, or a peer on the same data."""
        config = self.config(seed)
        if system == OURS_OFFLINE:
            train_agent(config, clock)
            return

        def watch(updates: int, ways: Mapping[str, returns.Begin]) -> None:
            if not updates:
                clock.start()
            elif not clock.goes_on(updates, lambda: best(ways)):
                raise EndTraining

        def best(ways: Mapping[str, returns.Begin]) -> float:
            return max(float(np.mean(returns.play(config, begin, self.target))) for begin in ways.values())

        try:
            returns.PEERS[system].train(self.data(seed), config, seed, watch)
        except EndTraining:
            return


MASKED = {"environment.wrappers": "[{name: DropIndices, indices: velocities}]"}
TASKS: dict[str, OnlineTask | OfflineTask] = {
    "proof_of_memory": OnlineTask(
        "proof of memory", {"environment.id": "rltransformers/ProofOfMemory-v0"}, 16, 1.17, seconds=10.0
    ),
    "cue_recall": OnlineTask(
        "CueRecall, delay 16",
        {"environment.id": "rltransformers/CueRecall-v0", "environment.kwargs": "{delay: 16}"},
        18, 0.95, seconds=20.0,
    ),
    "cartpole_masked": OnlineTask(
        "CartPole without velocities", {"environment.id": "CartPole-v1"} | MASKED, 500, 475.0, every=8000
    ),
    "repeat_previous": OnlineTask(
        "RepeatPreviousEasy", {"environment.id": "popgym-RepeatPreviousEasy-v0"}, 52, 0.9, every=4000, needs="popgym"
    ),
    "pendulum_masked": OnlineTask(
        "Pendulum without velocity", {"environment.id": "Pendulum-v1"} | MASKED, 200, -200.0, every=8000, peers=False
    ),
    "minigrid_memory": OnlineTask(
        "MiniGrid-MemoryS7",
        {
            "environment.id": "MiniGrid-MemoryS7-v0",
            "environment.wrappers": "[GridSymbols, FlattenObservation]",  # one-hot, which every system takes
        },
        245, 0.85, every=16_000, limit=600.0, needs="minigrid",
    ),
    "key_to_door": OfflineTask("KeyToDoor, offline", "dt_key_to_door", target=1.0, aim=0.9, every=100, episodes=200),
    "hopper_mixture": OfflineTask(
        "Hopper mixture, offline", "dt_hopper_mixture", target=2400.0, aim=2300.0, every=1000, episodes=50
    ),
}  # fmt: skip
