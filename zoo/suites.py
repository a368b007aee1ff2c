"""A suite of results: the YAML that names tasks, variants and seeds, and the cells it stands for.

A cell is one run: task x variant x seed.
"""

import hashlib
import json
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from importlib import resources
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from rltransformers.cli.configs import find_config
from rltransformers.cli.keywords import MEMORY_AGENTS
from rltransformers.cli.trust import import_modules
from rltransformers.cli.variants import folders_of, slug
from rltransformers.core.errors import ConfigError, did_you_mean, one_line, refuse_unknown
from rltransformers.core.files import check_name, read_text
from rltransformers.core.ranges import check
from rltransformers.core.yaml_text import parse_yaml, yaml_of
from rltransformers.policies.steps import Acting
from rltransformers.training.runs.experiment import ExperimentConfig
from rltransformers.training.runs.groups import ASIDE

SUITES = Path(str(resources.files("rltransformers.configs"))) / "suites"
MIN_EPISODES = 50
SCORES = ("return", "success")
_SET_BY_CELL = ("seed", "output")
Built = TypeVar("Built")


@dataclass(frozen=True)
class Aim:
    """Aim of a variant (default: the first of the task).

    Attributes:
        least, most: bounds of the IQM over runs, or, with ``seeds``, of each run.
        seeds: runs that have to keep the bound.
        above: a variant whose 95 % interval has to lie below that of this one; a single run has no interval.
        over: the bound is for the ratio of the two IQMs, this variant to that one; not met by 0 to 0 or below 0.
        score: ``spearman`` (of target and achieved return, within each run), ``rising`` (the achieved return, IQM over
            runs, rises from each target to the next), or nothing: the task's score.
        target: judge the result of this target return instead of the task's.
        transfer: judge the result in this environment of the task's ``transfers`` instead of that of training.
        targets: for ``spearman`` and ``rising``; default: all of them.
    """

    least: float | None = None
    most: float | None = None
    seeds: int | None = None
    variant: str | None = None
    above: str | None = None
    over: str | None = None
    score: str | None = None
    target: float | None = None
    transfer: str | None = None
    targets: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.score not in (None, "spearman", "rising"):
            raise ConfigError(f"score {self.score!r} of an aim; {did_you_mean(self.score, ('spearman', 'rising'))}")
        kinds = [self.least is not None, self.most is not None, self.above is not None, self.score == "rising"]
        if sum(kinds) != 1:
            raise ConfigError(f"an aim has one of least, most, above and score: rising, got {sum(kinds)} of them")
        if self.seeds is not None and (self.over is not None or self.above is not None or self.score == "rising"):
            raise ConfigError("an aim with over, above or rising is about all runs together: leave seeds out")
        if self.targets and self.score is None:
            raise ConfigError("targets of an aim are for score spearman and rising; one target is `target: R`")
        if self.target is not None and self.score is not None:
            raise ConfigError(f"an aim with score {self.score} looks at all targets: leave target out")
        if self.transfer is not None and (self.target is not None or self.score is not None):
            raise ConfigError("an aim with a transfer judges the task's score there: leave score and target out")


@dataclass(frozen=True)
class Transfer:
    """An environment in which the last weights are evaluated and never trained.

    Attributes:
        id: one with the same spaces; None: that of the run.
        kwargs: keywords of it, beside those of the evaluation.
        episodes: all at the same time.
        acting: of agents of this package; compiling takes half a minute, which short episodes do not win back.
    """

    id: str | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    episodes: int = MIN_EPISODES
    acting: Acting = "compiled"

    def __post_init__(self) -> None:
        if self.episodes < MIN_EPISODES:
            raise ConfigError(f"episodes is {self.episodes}; results are means over at least {MIN_EPISODES} episodes")


@dataclass(frozen=True)
class Task:
    """One row of the summary: a config, its variants (the first is the method) and what it should reach.

    Attributes:
        config: packaged config or path, the base of every variant.
        variants: name -> dotted overrides; ``config`` replaces the base, ``dataset: mean`` scores the episodes that
            the base config learns from, ``seeds: N`` runs the first N seeds of the task only.
        overrides: dotted keys for every variant, below those of the variant; a section there replaces keys in it.
        seeds: number (0, 1, ...) or list; default: the suite's.
        score: ``return`` or ``success``.
        target: which target return the score is of, where an evaluation has several.
        transfers: name -> environment that the last weights of every run are evaluated in beside that of training.
        baseline: variant that the probability of improvement is against; default: the second.
        chance: score from which colors run up to 1 in the picture of an overview ``map``.
        note: a sentence on the figures, under the table.
        published: name -> figure of others on this task, a column of the overview.
    """

    title: str
    config: str
    variants: dict[str, dict[str, Any]]
    overrides: dict[str, Any] = field(default_factory=dict)
    seeds: int | list[int] | None = None
    score: str = "return"
    target: float | None = None
    transfers: dict[str, Transfer] = field(default_factory=dict)
    baseline: str | None = None
    aims: list[Aim] = field(default_factory=list)
    chance: float = 0.0
    note: str = ""
    published: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.score not in SCORES:
            raise ConfigError(f"score {self.score!r}; {did_you_mean(self.score, SCORES)}")
        if not self.variants:
            raise ConfigError("variants: a task needs at least one")
        if self.chance >= 1.0:
            raise ConfigError(f"chance {self.chance} is not below 1, the best score there is")
        named = [self.baseline, *(name for aim in self.aims for name in (aim.variant, aim.above, aim.over))]
        for name in named:
            if name is not None and name not in self.variants:
                raise ConfigError(f"no variant {name!r}; {did_you_mean(name, self.variants)}")
        for aim in self.aims:
            if aim.transfer is not None and aim.transfer not in self.transfers:
                raise ConfigError(f"no transfer {aim.transfer!r}; {did_you_mean(aim.transfer, self.transfers)}")

    @property
    def method(self) -> str:
        """The first variant."""
        return next(iter(self.variants))

    @property
    def compared_with(self) -> str | None:
        """The variant that the probability of improvement is against."""
        return self.baseline or next(iter(list(self.variants)[1:]), None)


@dataclass(frozen=True)
class SuiteText:
    """Content of the YAML of a suite.

    Attributes:
        found: what the runs showed, in Markdown: the page begins with it.
        seeds: of tasks without their own: number (0, 1, ...) or list.
        datasets: Minari id -> arguments of ``rltransformers collect``, run once where the dataset is missing;
            ``{behaviors}`` stands for the folder given as --behaviors.
        metrics: shown beside the score: columns of the CSV such as ``steps_per_cpu_second`` and ``state_bytes``, or
            names of metrics that runs log, of which the last value counts; ``curve_mean`` is the mean score over all
            evaluations, ``curve_max`` the highest; ``training_max`` the highest mean return of 100 training episodes
            behind the first tenth of the run; ``equal_time`` the score within the processor time that the first
            variant takes.
        overview: one of these, or score, of which the page begins with a table: a line per task, a column per variant;
            or ``map``, a table and a picture of scores with a line per variant, a column per task and per environment
            of its ``transfers``, and columns for what is carried from step to step and the time of a step.
        overview_means: whether means over tasks begin the table, of variants with rows for half of the tasks: not where
            their returns share no scale.
        overview_note: a sentence under that.
    """

    title: str
    tasks: dict[str, Task]
    found: str = ""
    seeds: int | list[int] = 5
    datasets: dict[str, str] = field(default_factory=dict)
    metrics: list[str] = field(default_factory=list)
    overview: str | None = None
    overview_means: bool = True
    overview_note: str = ""

    def __post_init__(self) -> None:
        for name in self.tasks:
            check_name(name, "the name of a task", way_out="")
        for name, words in self.datasets.items():
            try:
                shlex.split(words)
            except ValueError as error:
                raise ConfigError(f"datasets.{name}: {one_line(error)}; quotes stand in pairs") from error
        known = ("score", "map", *self.metrics)
        if self.overview is not None and self.overview not in known:
            hint = did_you_mean(self.overview, known)
            raise ConfigError(f"overview {self.overview!r} is neither score nor map nor in metrics; {hint}")
        if self.overview is None and (cited := [name for name, task in self.tasks.items() if task.published]):
            raise ConfigError(f"tasks.{cited[0]}: published figures are shown in an overview; give the suite one")


@dataclass(frozen=True, eq=False)
class Cell:
    """One run. ``config`` has its seed; ``of_data``: nothing is trained, the data are scored."""

    task: str
    variant: str
    seed: int
    config: ExperimentConfig
    config_hash: str
    of_data: bool

    @property
    def key(self) -> tuple[str, str, int]:
        return self.task, self.variant, self.seed

    @property
    def folder(self) -> str:
        """Name of the run folder, inside that of the task."""
        return f"{slug(self.variant)}-seed{self.seed}"

    def __str__(self) -> str:
        return f"{self.task} / {self.variant}, seed {self.seed}"


class SuiteVariant(NamedTuple):
    """A variant of a task whose config is resolved; ``of_data``: it scores the episodes that the config learns from."""

    config: ExperimentConfig
    config_hash: str
    of_data: bool


@dataclass(frozen=True)
class Suite:
    """A suite whose configs are resolved, ``variants[task][name]``."""

    name: str
    text: SuiteText
    variants: Mapping[str, Mapping[str, SuiteVariant]]

    @property
    def tasks(self) -> Mapping[str, Task]:
        return self.text.tasks

    def seeds(self, task: str, count: int | None = None) -> list[int]:
        """Seeds of a task; ``count``: that many instead, the first of a list."""
        own = self.tasks[task].seeds
        seeds = self.text.seeds if own is None else own
        if isinstance(seeds, int):
            return list(range(seeds if count is None else count))
        return seeds[:count]

    def cells(self, count: int | None = None) -> Iterator[Cell]:
        """All cells: tasks in the order of the YAML, in each the first seed of all variants, then the second, ..."""
        for task in self.tasks:
            for seed in self.seeds(task, count):
                for variant, (config, config_hash, of_data) in self.variants[task].items():
                    if seed in self.variant_seeds(task, variant, count):
                        yield Cell(task, variant, seed, replace(config, seed=seed), config_hash, of_data)

    def variant_seeds(self, task: str, variant: str, count: int | None = None) -> list[int]:
        """Seeds of a variant; a stored dataset is the same for every seed and has only the first."""
        config, _, of_data = self.variants[task][variant]
        own: int | None = self.tasks[task].variants[variant].get("seeds")
        seeds = self.seeds(task, count)[:own]
        stored = config.dataset is not None and config.dataset.collect is None
        return seeds[:1] if of_data and stored else seeds


def read_suite(name: str, trust: bool = False) -> Suite:
    """The suite of a YAML file, or of the package; ``trust`` allows modules under ``imports``, also of its configs.

    Raises:
        ConfigError: when it is neither, for unknown keys and names, and for configs that cannot work.
    """
    path = find_suite(name)
    check_name(path.stem, "the name of a suite", way_out="")
    values = parse_yaml(read_text(path, "suite"), str(path))
    text = _read(SuiteText, values, path.name)
    for task in text.tasks.values():
        for settings in (task.overrides, *task.variants.values()):
            import_modules(settings.get("imports", []), path.name, trust)
    variants = {key: _resolve(task, f"{path.name}: tasks.{key}", trust) for key, task in text.tasks.items()}
    suite = Suite(path.stem, text, variants)
    for key in suite.tasks:
        seeds = suite.seeds(key)
        if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
            raise ConfigError(f"{path.name}: tasks.{key}: seeds must be at least 1, or a list without doubles")
        for variant, changes in suite.tasks[key].variants.items():
            own, place = changes.get("seeds", 1), f"{path.name}: tasks.{key}.variants.{variant}"
            if type(own) is not int or own < 1:
                raise ConfigError(f"{place}: seeds of a variant is how many of the task's seeds it runs, got {own!r}")
            if own > len(seeds):
                raise ConfigError(f"{place}: {own} seeds, the task has {len(seeds)}")
        for aim in suite.tasks[key].aims:
            runs = len(suite.variant_seeds(key, aim.variant or suite.tasks[key].method))
            if aim.seeds is not None and aim.seeds > runs:
                raise ConfigError(f"{path.name}: tasks.{key}: an aim wants {aim.seeds} seeds, its variant has {runs}")
    return suite


def find_suite(name: str) -> Path:
    """Path of a suite.

    Raises:
        ConfigError: with the closest known names.
    """
    path = Path(name)
    if path.is_file():
        return path
    known = {each.stem: each for each in sorted(SUITES.glob("*.yaml"))}
    stem = name.removeprefix("configs/suites/").removesuffix(".yaml")
    if stem in known:
        return known[stem]
    if path.stem in known:
        raise ConfigError(f"suite {name}: there is no such file; for the packaged suite name it alone: {path.stem}")
    raise ConfigError(f"suite {name!r} is neither a file nor a packaged suite; {did_you_mean(name, known)}")


def chosen(cells: Sequence[Cell], only: Sequence[str]) -> list[Cell]:
    """The cells of TASK or TASK/VARIANT, for any of ``only``; all without ``only``.

    Raises:
        ConfigError: for a name that no cell has.
    """
    known = {cell.task for cell in cells} | {f"{cell.task}/{cell.variant}" for cell in cells}
    for name in only:
        if name not in known:
            raise ConfigError(f"--only {name}: no such task or TASK/VARIANT; {did_you_mean(name, known)}")
    return [cell for cell in cells if not only or cell.task in only or f"{cell.task}/{cell.variant}" in only]


def config_hash(config: ExperimentConfig, kind: str = "run", transfers: Mapping[str, Transfer] | None = None) -> str:
    """12 hexadecimal digits of what a run computes: the resolved config without seed, output, threads and tune.

    ``transfers`` count where there are some, but for how they act.

    Values that equal the default of their key count as absent, so that a new key does not make old results stale.
    Where a default of today is another than that of the first results, the value counts as absent that it had then.
    """
    values = {key: value for key, value in _not_default(config).items() if key not in ASIDE}
    if config.agent in MEMORY_AGENTS:
        agent = MEMORY_AGENTS[config.agent]
        earlier = {"scale_rewards": False} | getattr(agent, "earlier_defaults", {})
        today = {name: signature(agent).parameters[name].default for name in earlier} | config.algorithm
        if config.environment.normalize_reward:
            today["scale_rewards"] = False  # it scales what is scaled already no more
        earlier.pop("learning_rate", None)  # which every config of the first results gave
        values["algorithm"] = {name: each for name, each in today.items() if (name, each) not in earlier.items()}
    elif config.algorithm.get("whole_episodes") is False:  # as the default was
        values["algorithm"] = {name: each for name, each in config.algorithm.items() if name != "whole_episodes"}
    parts = [kind, values]
    if transfers:
        played = {name: asdict(transfer) for name, transfer in transfers.items()}
        parts.append({name: {key: each[key] for key in each if key != "acting"} for name, each in played.items()})
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def _resolve(task: Task, place: str, trust: bool) -> dict[str, SuiteVariant]:
    resolved = {}
    for name, overrides in task.variants.items():
        of_data = overrides.get("dataset") == "mean"
        own = ("seeds", "config", "dataset") if of_data else ("seeds", "config")
        changes = {key: value for key, value in overrides.items() if key not in own}
        base = str(overrides.get("config", task.config))
        of_task = {key: value for key, value in task.overrides.items() if not _is_within(key, changes)}
        try:
            config = _config(base, of_task | changes, trust)
            if of_data and config.dataset is None:
                raise ConfigError(f"dataset: mean needs a config with a dataset, {base} has none")
            if not of_data:
                _check_evaluation(task, config)
        except ConfigError as error:
            raise ConfigError(f"{place}.variants.{name}: {error}") from error
        hashed = config_hash(config, "data" if of_data else "run", task.transfers)
        resolved[name] = SuiteVariant(config, hashed, of_data)
    _check_budgets(resolved, place)
    for aim in task.aims:
        _check_targets(aim, resolved[aim.variant or task.method].config.evaluation.target_returns, place)
    folders_of(list(resolved), place)
    return resolved


def _is_within(key: str, sections: Collection[str]) -> bool:
    """Whether a dotted key lies in one of the sections: a section of a variant replaces what its task sets of it."""
    return any(key.startswith(f"{section}.") for section in sections)


def _config(name: str, overrides: Mapping[str, Any], trust: bool) -> ExperimentConfig:
    for key in overrides:
        if key in _SET_BY_CELL:
            raise ConfigError(f"{key} is set by the suite for every run: leave it out (seeds: of the task)")
    texts = [(key, yaml_of(value)) for key, value in overrides.items()]
    return find_config(name, texts, trust=trust)[1]


def _check_evaluation(task: Task, config: ExperimentConfig) -> None:
    evaluation = config.evaluation
    if evaluation.episodes < MIN_EPISODES:
        raise ConfigError(
            f"evaluation.episodes is {evaluation.episodes}; results are means over at least {MIN_EPISODES} episodes"
        )
    targets = evaluation.target_returns
    if len(targets) > 1 and task.target not in targets:
        raise ConfigError(f"several target returns: set the task's target to one of {targets}, got {task.target}")


def _check_budgets(resolved: Mapping[str, SuiteVariant], place: str) -> None:
    """Raise when variants that learn online do so for different numbers of environment steps: no comparison then."""
    budgets = {
        name: variant.config.train.total_timesteps
        for name, variant in resolved.items()
        if variant.config.dataset is None and not variant.of_data
    }
    if len(set(budgets.values())) > 1:
        listed = ", ".join(f"{name} {steps}" for name, steps in budgets.items())
        raise ConfigError(f"{place}: train.total_timesteps differs ({listed}); set it in the overrides of the task")


def _check_targets(aim: Aim, asked: Sequence[float], place: str) -> None:
    """Raise for an aim at target returns that the runs are not evaluated with: before they train, not after."""
    missing = [target for target in (*aim.targets, aim.target) if target is not None and target not in asked]
    if missing:
        raise ConfigError(
            f"{place}: an aim is about target return {missing[0]:g}; evaluation.target_returns are {asked}"
        )
    if aim.score is not None and len(asked) < 2:
        raise ConfigError(f"{place}: an aim with score {aim.score} needs several target returns, got {asked}")


def _not_default(value: Any) -> Any:
    """Fields of a dataclass that are not at their default, recursively, as JSON values."""
    if not is_dataclass(value) or isinstance(value, type):
        return value
    differing = {}
    for each in fields(value):
        default = each.default_factory() if each.default_factory is not MISSING else each.default
        current = getattr(value, each.name)
        if default is MISSING or current != default:
            differing[each.name] = _not_default(current)
    return differing


def _read(cls: type[Built], values: Any, place: str) -> Built:
    """A dataclass from a mapping: unknown keys, missing keys and wrong types are refused."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{place} must be a mapping of keys, got {values!r}")
    parts, hints = fields(cls), get_type_hints(cls)  # type: ignore[arg-type]  # a dataclass, which type[] cannot say
    refuse_unknown(values, [part.name for part in parts], source=place)
    for part in parts:
        if part.default is MISSING and part.default_factory is MISSING and part.name not in values:
            raise ConfigError(f"{place}: {part.name} is missing")
    read = {}
    for key, value in values.items():
        place_of_key = f"{place}: {key}"
        read[key] = check(_build(value, hints[key], place_of_key), hints[key], place_of_key)
    try:
        return cls(**read)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error


def _build(value: Any, hint: Any, place: str) -> Any:
    """``value`` with the dataclasses made that ``hint`` names, also inside lists and mappings."""
    if is_dataclass(hint) and isinstance(hint, type):
        return _read(hint, value, place)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is dict and isinstance(value, Mapping):
        wanted = arguments[1]
        return {
            str(key): _build({} if each is None and get_origin(wanted) is dict else each, wanted, f"{place}.{key}")
            for key, each in value.items()
        }
    if origin is list and isinstance(value, list):
        return [_build(each, arguments[0], f"{place}[{index}]") for index, each in enumerate(value)]
    return value
