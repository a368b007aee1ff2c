"""The config of one run: frozen dataclasses read from YAML with dotted overrides; unknown keys are refused."""

import math
import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from annotated_types import Ge, Le

from rltransformers.core.errors import ConfigError, refuse_unknown
from rltransformers.core.files import read_text
from rltransformers.core.ranges import (
    Count,
    Environments,
    Episodes,
    NonNegativeNumber,
    Processes,
    Seed,
    Steps,
    Threads,
    WholeNumber,
    check_fields,
    shown,
)
from rltransformers.core.yaml_text import parse_yaml
from rltransformers.training.runs.search import read_search


class AgentName(StrEnum):
    """Agents that learn in a run; a config writes the value."""

    GTRXL_PPO = "gtrxl_ppo"
    GTRXL_VMPO = "gtrxl_vmpo"
    GTRXL_DQN = "gtrxl_dqn"
    GTRXL_SAC = "gtrxl_sac"
    DECISION_TRANSFORMER = "decision_transformer"
    RECURRENT_PPO = "recurrent_ppo"
    PPO = "ppo"
    SAC = "sac"


AROUND = ("output", "threads", "tracker")
"""Settings around a run, which change nothing that it computes."""
RESTARTING = (AgentName.GTRXL_PPO, AgentName.GTRXL_VMPO, AgentName.GTRXL_DQN, AgentName.GTRXL_SAC)
"""Agents that can begin new episodes in the middle of a run and resume from there."""
BASELINES = (AgentName.RECURRENT_PPO, AgentName.PPO, AgentName.SAC)
"""Agents of Stable-Baselines3 and sb3-contrib, to compare with."""


@dataclass(frozen=True)
class EnvironmentConfig:
    """Where the agent acts.

    Attributes:
        id: Gymnasium id; empty: no environment.
        num_envs: copies that are stepped together, in training and in evaluation.
        kwargs: keywords of the environment.
        wrappers: observation wrappers, applied in order: a name, or a mapping {name: ..., option: value}.
        processes: who steps the copies: false, this process; true, one process per copy, for environments that are slow
            to step; envpool, threads of EnvPool (id and kwargs are EnvPool's); tensors, one program on the agent's
            device (docs/environments.md names the ids).
        normalize_observation: running mean and deviation of observations (VecNormalize).
        normalize_reward: rewards divided by the running deviation of the return, in training only (VecNormalize);
            agents with algorithm.scale_rewards do so by themselves, and leave them alone where this is true.
        novelty_bonus: reward for every observation that an episode has not had yet, in training only (NoveltyBonus).
        novelty_steps: training steps over which it falls linearly to 0; null: it stays as it is.
    """

    id: str = ""
    num_envs: Environments = 1
    kwargs: dict[str, Any] = field(default_factory=dict)
    wrappers: list[str | dict[str, Any]] = field(default_factory=list)
    processes: Processes = False
    normalize_observation: bool = False
    normalize_reward: bool = False
    novelty_bonus: NonNegativeNumber = 0.0
    novelty_steps: Count | None = None

    def __post_init__(self) -> None:
        check_fields(self, "environment.")
        given = [name for name, value in vars(self).items() if (value != 1 if name == "num_envs" else value)]
        if not self.id and given:
            raise ConfigError(f"environment.{given[0]} is set, and environment.id is missing")
        if self.novelty_steps is not None and not self.novelty_bonus:
            raise ConfigError("environment.novelty_steps is how long environment.novelty_bonus is paid: set that, too")

    @property
    def normalizes(self) -> bool:
        """Whether ``VecNormalize`` stands around the environment."""
        return self.normalize_observation or self.normalize_reward


@dataclass(frozen=True)
class CollectConfig:
    """Episodes recorded in the run's environment before training, kept in memory.

    Attributes:
        episodes: how many are recorded.
        behaviors: written as for ``rltransformers collect``: ``random``, ``sb3:ppo:file.zip``, ...; ``=weight`` behind
            one sets its share of the episodes.
        longest_episode: steps after which an episode that goes on is an error, as in the evaluation.
    """

    episodes: Episodes
    behaviors: list[str] = field(default_factory=lambda: ["random"])
    longest_episode: Count | None = None

    def __post_init__(self) -> None:
        check_fields(self, "dataset.collect.")


@dataclass(frozen=True)
class DatasetConfig:
    """Data of an offline agent: ``id`` or ``collect``, one of the two.

    Attributes:
        id: Minari, D4RL or OGBench id, or path of a file or folder of data, see docs/data.md.
        collect: episodes that are recorded before training.
        time_limit: step limit of the environment, for data at ``id`` that do not tell limits from ends.
        split_on_discontinuity: also end an episode of ``id`` where observations do not follow each other, as AntMaze
            files need.
        cache: folder that keeps what was read of ``id``, to be read faster the next time.
        observation_space: that of the environment, for data at ``id`` that do not tell it, as ``Box(-1, 1, (4,))``.
        action_space: the same, as ``Discrete(3)``.
        observation_leaves: fields of nested observations that are kept, e.g. those that are no text.
        columns: what the columns of a table with a row per step hold, see docs/data.md.
    """

    id: str | None = None
    collect: CollectConfig | None = None
    time_limit: Count | None = None
    split_on_discontinuity: bool = False
    cache: str | None = None
    observation_space: str | None = None
    action_space: str | None = None
    observation_leaves: list[str] | None = None
    columns: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self, "dataset.")
        given = [name for name, value in self.reading().items() if value]
        if self.collect is not None and given:
            raise ConfigError(
                f"dataset.{given[0]} is about how the data of dataset.id are read, not about dataset.collect"
            )

    def reading(self) -> dict[str, Any]:
        """How ``id`` is read: keywords of ``load_trajectories``."""
        from rltransformers.core.spaces import space_from_text  # slow to import, and configs are read to be completed

        plain = ("time_limit", "split_on_discontinuity", "cache", "observation_leaves")
        options: dict[str, Any] = {name: getattr(self, name) for name in plain}
        options["columns"] = self.columns or None
        for name in ("observation_space", "action_space"):
            text = getattr(self, name)
            options[name] = None if text is None else space_from_text(text)
        return options


@dataclass(frozen=True)
class TrainConfig:
    """How long: ``total_timesteps`` online, ``gradient_steps`` offline.

    Attributes:
        total_timesteps: steps of the environment, of all copies together; for agents that learn online.
        gradient_steps: updates of a decision_transformer on its dataset.
        restart_every: environment steps after which all environments begin new episodes and ``last.zip`` is written,
            between two updates and nowhere else, so that a resumed run equals one that never stopped also where
            environments cannot tell where they stand. None: never; ``last.zip`` is then written once a minute, less
            often where that would take more than a twentieth of the time.
    """

    total_timesteps: Steps | None = None
    gradient_steps: Steps | None = None
    restart_every: Count | None = None

    def __post_init__(self) -> None:
        check_fields(self, "train.")


@dataclass(frozen=True)
class OnlineConfig:
    """Episodes that a Decision Transformer plays and learns from after its gradient steps on the dataset.

    Attributes:
        timesteps: of the environment; the episode that reaches them is played to its end.
        exploration_return: what episodes are asked for; null: beyond the best return of the dataset.
        exploration_noise: deviation of what is added to actions of a Box that are not drawn (algorithm.action_head), in
            units where its bounds are -1 and 1.
        replay_episodes: episodes that are learned from, at first the best ones of the dataset; the oldest make room.
        updates_per_episode: gradient steps after every episode.
        num_envs: episodes that are played at the same time.
    """

    timesteps: Steps
    exploration_return: float | None = None
    exploration_noise: Annotated[float, Ge(0), Le(2)] = 0.0
    replay_episodes: Count = 1_000
    updates_per_episode: Count = 300
    num_envs: Environments = 1

    def __post_init__(self) -> None:
        check_fields(self, "online.")


@dataclass(frozen=True)
class EvaluationConfig:
    """Evaluation every ``every`` training steps (0: only at the end) and at the end.

    Attributes:
        episodes: episodes per evaluation, and per target return.
        every: steps from one evaluation to the next, of the environment online, of the gradient offline; 0: only at the
            end.
        target_returns: commanded returns of a Decision Transformer.
        seed: from which the seeds of the episodes follow; they are none of training, whatever its seed.
        deterministic: the most likely action instead of a sampled one.
        kwargs: keywords of the environment that differ from ``environment.kwargs``: train on many levels, test on one.
        longest_episode: steps after which an episode that goes on is an error; ``None``: 200,000, or the step limit
            that the environment is registered with where that is larger.
        patience: evaluations without a new ``best.zip`` after which a decision_transformer ends its training; ``None``:
            it does not.
    """

    episodes: Episodes = 50
    every: WholeNumber = 0
    target_returns: list[float] = field(default_factory=list)
    seed: Seed = 1_000_000
    deterministic: bool = True
    kwargs: dict[str, Any] = field(default_factory=dict)
    longest_episode: Count | None = None
    patience: Count | None = None

    def __post_init__(self) -> None:
        check_fields(self, "evaluation.")
        if self.patience is not None and not self.every:
            raise ConfigError("evaluation.patience counts evaluations on the way: set evaluation.every, too")


@dataclass(frozen=True)
class TuneConfig:
    """Search of ``rltransformers tune``.

    Attributes:
        search: values to try by dotted key: a range ``low..high`` or ``low..high:log``, whole numbers where both ends
            are, or a list of values.
        trials: runs, those that are stopped early included.
    """

    search: dict[str, Any] = field(default_factory=dict)
    trials: Count = 20

    def __post_init__(self) -> None:
        check_fields(self, "tune.")
        for key, values in self.search.items():
            read_search(values, f"tune.search.{key}")


@dataclass(frozen=True)
class ExperimentConfig:
    """One run.

    Attributes:
        agent: what learns: gtrxl_ppo, gtrxl_vmpo, gtrxl_dqn, gtrxl_sac, decision_transformer, or a baseline:
            recurrent_ppo (sb3-contrib's, with an LSTM or a GRU), ppo or sac (Stable-Baselines3's, without memory).
        environment: where it acts; a decision_transformer with dataset.id and algorithm.validation does without one,
            and is evaluated on held-out episodes.
        seed: of everything in the run: weights, actions, minibatches and environments.
        backbone: preset and overrides of ``BackboneConfig``.
        policy: other policy keywords of the agent.
        algorithm: constructor keywords of the agent.
        online: episodes of its own that a decision_transformer goes on learning from.
        output: folder that run folders are made in; ``~`` is the home folder.
        threads: threads of torch; ``None``: ``OMP_NUM_THREADS`` where it is set, else 1.
        tracker: wandb or mlflow, to log there as well.
        imports: modules that register mechanisms of their own, imported before anything is checked.
        tune: what ``rltransformers tune`` tries; training takes no notice of it.
    """

    agent: AgentName
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig, kw_only=True)
    train: TrainConfig
    seed: Seed = 0
    dataset: DatasetConfig | None = None
    backbone: dict[str, Any] = field(default_factory=dict)
    policy: dict[str, Any] = field(default_factory=dict)
    algorithm: dict[str, Any] = field(default_factory=dict)
    online: OnlineConfig | None = None
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    output: str = "runs"
    threads: Threads | None = None
    tracker: Literal["wandb", "mlflow"] | None = None
    imports: list[str] = field(default_factory=list)
    tune: TuneConfig | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "output", os.path.expanduser(self.output))
        offline = self.agent is AgentName.DECISION_TRANSFORMER
        self._check_length(offline)
        if offline and self.dataset is None:
            raise ConfigError("agent decision_transformer learns from data: set dataset.id or dataset.collect")
        if self.dataset is not None and (self.dataset.id is None) == (self.dataset.collect is None):
            raise ConfigError("dataset takes either id (an id or a path) or collect: give one of the two")
        for section in () if offline else ("online", "dataset"):
            if getattr(self, section) is not None:
                raise ConfigError(f"agent {self.agent} learns in its environment anyway: leave {section} out")
        if not self.environment.id:
            self._check_without_environment(offline)
        elif offline and (self.environment.processes or self.environment.normalizes or self.environment.novelty_bonus):
            raise ConfigError(
                "agent decision_transformer only evaluates in its environment: leave out processes, novelty_bonus, "
                "normalize_observation and normalize_reward (algorithm.normalize_observations standardizes the data)"
            )
        if self.environment.novelty_bonus and self.policy.get("previous_reward"):
            raise ConfigError(
                "policy.previous_reward would show the policy environment.novelty_bonus, which is paid in training "
                "only: leave one of the two out"
            )
        if not offline and self.evaluation.target_returns:
            raise ConfigError("evaluation.target_returns are for agent decision_transformer")
        if offline and (mode := self.algorithm.get("mode")) in ("bc", "advantage") and self.evaluation.target_returns:
            raise ConfigError(
                f"algorithm.mode {mode} has no target return: set evaluation.target_returns to [], and leave"
                " --target-return out"
            )
        if self.agent in BASELINES and self.backbone:
            network = "an LSTM" if self.agent is AgentName.RECURRENT_PPO else "a perceptron"
            raise ConfigError(
                f"agent {self.agent} has {network} instead of a backbone: leave backbone out (--backbone null)"
            )
        if self.evaluation.patience is not None and (not offline or self.online is not None):
            raise ConfigError("evaluation.patience is for agent decision_transformer without online: leave it out")

    def _check_without_environment(self, offline: bool) -> None:
        """Raise ConfigError for what needs an environment, and where nothing else would say how good the agent is."""
        collects = self.dataset is not None and self.dataset.collect is not None
        if not offline or collects or self.online is not None:
            what = f"agent {self.agent}" if not offline else "dataset.collect" if collects else "online"
            raise ConfigError(f"environment.id is missing, in which {what} acts: set it")
        if not self.algorithm.get("validation"):
            raise ConfigError(
                "environment.id is missing, so only held-out episodes can say how good the agent is: set"
                " algorithm.validation (0.1 is usual), or environment.id"
            )
        for name, usual in vars(EvaluationConfig()).items():
            if name not in ("every", "patience") and getattr(self.evaluation, name) != usual:
                why = "is about episodes in an environment, and environment.id is missing"
                raise ConfigError(f"evaluation.{name} {why}: leave {name} out, or set environment.id")

    def _check_length(self, offline: bool) -> None:
        if self.train.restart_every is not None and self.agent not in RESTARTING:
            raise ConfigError(
                f"train.restart_every is for agents {', '.join(RESTARTING)}: leave it out; agent {self.agent} "
                + ("resumes exactly without it" if offline else "cannot resume exactly")
            )
        if (self.train.restart_every or 0) >= (self.train.total_timesteps or math.inf):
            raise ConfigError(
                f"train.restart_every ({self.train.restart_every:,}) must be below train.total_timesteps "
                f"({self.train.total_timesteps:,}): there would be no restart, and no checkpoint before the end"
            )
        lengths = [name for name in ("total_timesteps", "gradient_steps") if getattr(self.train, name) is not None]
        needed = "gradient_steps" if offline else "total_timesteps"
        if lengths != [needed]:
            raise ConfigError(f"agent {self.agent} takes train.{needed}, got {', '.join(lengths) or 'nothing'}")

    @property
    def evaluation_environment(self) -> EnvironmentConfig:
        """The environment with the keywords that evaluation changes."""
        return replace(self.environment, kwargs=self.environment.kwargs | self.evaluation.kwargs)

    @property
    def steps(self) -> int:
        """Training steps of the agent's own kind."""
        return self.train.total_timesteps or self.train.gradient_steps or 0

    def to_dict(self) -> dict[str, Any]:
        """The values in a YAML file of this config."""
        values = asdict(self) | {"agent": self.agent.value}  # YAML writes no members of enumerations
        return values if self.environment.id else values | {"environment": None}


def read_experiment(source: Path | str, overrides: Sequence[tuple[str, str]] = ()) -> ExperimentConfig:
    """The config in the YAML file ``source``, changed by dotted ``overrides`` such as ("seed", "1").

    The text of an override is read as YAML: ``null``, ``true``, ``[1, 2]`` and ``{a: 1}`` mean what they mean in a
    file.

    Raises:
        ConfigError: for an unreadable file, an unknown key, a wrong type, or values that cannot go together.
    """
    values = read_values(read_text(source, "config"), str(source), overrides)
    return build_experiment(values, str(source))


def read_values(text: str, source: str, overrides: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
    """The nested mapping in a YAML text, changed by ``overrides``; its keys and values are not looked at."""
    values = parse_yaml(text, source)
    if not isinstance(values, dict):
        raise ConfigError(f"config {source} must be a mapping of keys, got {type(values).__name__}")
    for place, (key, override) in enumerate(overrides):
        for earlier, _ in overrides[:place]:
            if earlier.startswith(f"{key}."):
                raise ConfigError(f"--{key} would replace --{earlier} in front of it; give the section first")
        set_value(values, key, parse_yaml(override, f"--{key}"))
    return values


def build_experiment(values: Mapping[str, Any], source: str = "config") -> ExperimentConfig:
    """The config made of a nested mapping; ``source`` is named in errors."""
    given = deepcopy(dict(values))
    if isinstance(given.get("dataset"), str):
        given["dataset"] = {"id": given["dataset"]}
    for section in ("backbone", "environment"):
        if section in given and given[section] is None:
            given[section] = {}
    if isinstance(given.get("backbone"), str):
        given["backbone"] = {"preset": given["backbone"]}
    config = _build(ExperimentConfig, given, source, "")
    assert isinstance(config, ExperimentConfig)
    _check_plain(given, "")
    return config


def _check_plain(value: Any, place: str) -> None:
    """Raise ConfigError unless JSON has the like of everything in a config; YAML has dates, sets and bytes besides."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_plain(key, f"{place} has a key that")
            _check_plain(inner, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            _check_plain(inner, f"{place}[{index}]")
    elif value is not None and not isinstance(value, bool | int | float | str):
        way_out = "write it in quotes" if isinstance(value, date) else "write a text, a number, a list or a mapping"
        raise ConfigError(f"{place} is a {type(value).__name__} ({value}), which no run folder can hold; {way_out}")


def _build(kind: type, values: Mapping[str, Any], source: str, place: str) -> Any:
    """A dataclass from a mapping, and those inside it from the mappings inside; ``place`` is its name with a dot."""
    hints = get_type_hints(kind, include_extras=True)
    known = {each.name: each for each in fields(kind)}
    refuse_unknown(values, known, place, source)
    given = {}
    for key, value in values.items():
        options = (hints[key], *get_args(hints[key]))
        inner = next((each for each in options if isinstance(each, type) and is_dataclass(each)), None)
        if inner is not None and isinstance(value, Mapping):
            value = _build(inner, value, source, f"{place}{key}.")
        elif inner is not None and (value is not None or type(None) not in get_args(hints[key])):
            raise ConfigError(f"{source}: {place}{key} must be a mapping of settings, got {shown(value)}")
        given[key] = value
    for name, each in known.items():
        if name not in given and each.default is MISSING and each.default_factory is MISSING:
            raise ConfigError(f"{source}: {place}{name} is missing")
    return kind(**given)


def set_value(values: dict[str, Any], key: str, value: Any) -> None:
    """Put ``value`` at the dotted ``key`` of nested mappings; a mapping that is missing or null is made.

    A preset or mechanism that is named by a text alone becomes the mapping that names it, for options beside it.
    """
    *outer, last = key.split(".")
    for depth, name in enumerate(outer):
        if values.get(name) is None:
            values[name] = {}
        if not isinstance(values[name], dict):
            place = ".".join(outer[: depth + 1])
            if not isinstance(values[name], str) or outer[0] not in ("backbone", "policy"):
                raise ConfigError(f"--{key}: {place} is {values[name]!r}, which has no keys")
            values[name] = {"preset" if place == "backbone" else "name": values[name]}
        values = values[name]
    values[last] = value
