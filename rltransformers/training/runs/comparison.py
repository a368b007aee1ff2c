"""Runs compared: groups of equal configs, statistics over their seeds, curves, and all of it as CSV."""

import csv
import math
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from matplotlib.ticker import EngFormatter

from rltransformers.core.described import number
from rltransformers.core.errors import ConfigError, DataError, did_you_mean
from rltransformers.core.files import naming, replacing
from rltransformers.core.ranges import check
from rltransformers.functional.statistics import iqm, iqm_interval, probability_of_improvement
from rltransformers.training.runs.curves import COLORS, Array, canvas, draw_curves, label_ends, save_figure
from rltransformers.training.runs.experiment import AgentName, ExperimentConfig, read_experiment
from rltransformers.training.runs.groups import environment_of, find_runs, further_differences, names_of, without_aside
from rltransformers.training.runs.run_folder import RunFolder

By = Literal["steps", "seconds", "updates"]
Places = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
USUAL = ("eval/mean_reward", "eval/action_loss")
"""Metrics that an evaluation has: in an environment, and on held-out episodes alone."""
LOWER = ("loss", "error", "rmse")
"""Words in the names of metrics that are better the lower they are."""
SHORT_NAME, NAME_INCHES = 20, 0.07  # characters that stand beside curves, and what each further one takes
NAME_HEIGHT = 0.25  # inches of a panel for each of many names
PICTURES = (".png", ".pdf", ".svg")


class Point(NamedTuple):
    """One evaluation: training step, seconds and updates until then (None: not known), and the metric."""

    step: int
    seconds: float | None
    updates: float | None
    value: float


@dataclass(frozen=True)
class Run:
    """One run folder.

    Attributes:
        metric: name of what ``points`` hold; empty where there is no evaluation.
        points: the evaluations with this metric, in order.
        step: last one that was logged.
        seconds: of training and evaluation; None where no TensorBoard file tells them.
        timed: last step of which the TensorBoard files tell the time.
        finished: whether it came to its end.
    """

    path: Path
    config: ExperimentConfig
    metric: str
    points: tuple[Point, ...]
    step: int
    seconds: float | None
    timed: int
    finished: bool

    @property
    def score(self) -> float:
        """Of the last evaluation."""
        return self.points[-1].value

    @property
    def best(self) -> float:
        """Of the best evaluation: the highest, of losses and errors the lowest."""
        values = [point.value for point in self.points if not math.isnan(point.value)] or [math.nan]
        return min(values) if lower_is_better(self.metric) else max(values)

    def curve(self, by: By) -> Array:
        """Evaluations [N, 2]: steps, seconds or updates, and the metric; those are left out whose place is unknown."""
        places = [getattr(point, "step" if by == "steps" else by) for point in self.points]
        pairs = [(place, point.value) for place, point in zip(places, self.points, strict=True) if place is not None]
        return np.array(pairs, dtype=np.float64).reshape(-1, 2)


@dataclass(frozen=True)
class Group:
    """Runs of one config with several seeds.

    Attributes:
        name: what differs from the other groups.
        counted: the runs that statistics are of: those that are finished, or all where none is.
    """

    name: str
    runs: tuple[Run, ...]

    @property
    def counted(self) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if run.finished) or self.runs

    @property
    def label(self) -> str:
        """The name without the environment, which stands above the curves."""
        environment, _ = self.scale
        return ", ".join(part for part in self.name.split(", ") if part != environment) or self.name

    @property
    def scores(self) -> list[float]:
        """Last evaluation of every counted run."""
        return [run.score for run in self.counted]

    @property
    def scale(self) -> tuple[str, str]:
        """Environment and metric: scores of the same ones can be compared."""
        return scale_of(self.runs[0])


@dataclass(frozen=True)
class Comparison:
    """Groups of runs, the first one being what the others are compared with; printed, it is a table.

    Attributes:
        notes: what a reader of the figures has to know, a sentence each.
    """

    groups: tuple[Group, ...]
    notes: tuple[str, ...]

    def summary(self) -> list[dict[str, Any]]:
        """JSON values of every group.

        ``iqm`` of the last evaluations over seeds with ``low`` and ``high``, its 95 % bootstrap interval (None for one
        seed), ``best`` the IQM of the best ones, ``improvement`` the probability that a run of the group beats one of
        the first group (None in the first, and where environment or metric is another one); medians of ``steps``,
        ``seconds`` and ``steps_per_second``. ``unfinished`` runs count in none of it, unless there are no others.
        """
        return [self._summary(group) for group in self.groups]

    def _summary(self, group: Group) -> dict[str, Any]:
        first, scores = self.groups[0], group.scores
        low, high = iqm_interval(scores) if len(scores) > 1 else (None, None)
        better = None
        if group is not first and group.scale == first.scale:
            sign = -1.0 if lower_is_better(group.scale[1]) else 1.0
            both = sign * np.array(scores), sign * np.array(first.scores)
            better = None if np.isnan(np.concatenate(both)).any() else probability_of_improvement(both[:1], both[1:])
        speeds = [run.timed / run.seconds if run.seconds else None for run in group.counted]
        return {
            "group": group.name,
            "agent": group.runs[0].config.agent.value,
            "environment": group.scale[0],
            "metric": group.scale[1],
            "seeds": [run.config.seed for run in group.counted],
            "unfinished": sum(not run.finished for run in group.runs),
            "iqm": float(iqm(scores)),
            "low": low,
            "high": high,
            "best": float(iqm([run.best for run in group.counted])),
            "improvement": better,
            "steps": median([run.step for run in group.counted]),
            "seconds": median([run.seconds for run in group.counted]),
            "steps_per_second": median(speeds),
            "runs": [str(run.path) for run in group.runs],
        }

    def rows(self) -> list[dict[str, Any]]:
        """JSON values of every evaluation of every run, for `pandas.DataFrame` or a CSV."""
        return [
            {
                "group": group.name,
                "run": str(run.path),
                "agent": run.config.agent.value,
                "environment": group.scale[0],
                "seed": run.config.seed,
                "finished": run.finished,
                **{"step": point.step, "seconds": point.seconds, "updates": point.updates},
                **{"metric": run.metric, "value": point.value},
            }
            for group in self.groups
            for run in group.runs
            for point in run.points
        ]

    def write_csv(self, path: str | os.PathLike[str]) -> tuple[Path, Path]:
        """Write ``rows`` to ``path``, and ``summary`` beside it as NAME-groups.csv; return both paths."""
        evaluations = Path(path)
        groups = evaluations.with_name(f"{evaluations.stem}-groups{evaluations.suffix}")
        summary = [
            values | {name: " ".join(map(str, values[name])) for name in ("seeds", "runs")} for values in self.summary()
        ]
        for file, rows in ((evaluations, self.rows()), (groups, summary)):
            with naming(file), replacing(file) as new, new.open("w", newline="", encoding="utf-8") as text:
                writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
        return evaluations, groups

    def plot(self, path: str | os.PathLike[str], by: By = "steps") -> None:
        """Draw the metric by steps, seconds or updates: IQM over seeds and its 95 % interval, a panel per environment
        and metric. Runs that are not finished are thin lines beside those that are.

        Raises:
            ConfigError: for an unknown ``by`` or ending of ``path``, and for runs that do not tell seconds or updates.
        """
        if by not in get_args(By):
            raise ConfigError(f"by={by!r}; {did_you_mean(str(by), get_args(By))}")
        check_picture_name(path)
        for run in (run for group in self.groups for run in group.runs):
            if not len(run.curve(by)):
                why = "it has no TensorBoard file" if by == "seconds" else "it logged no train/n_updates"
                raise ConfigError(f"{run.path} does not tell {by}: {why}; compare by steps, or leave the run out")
        panels = list(dict.fromkeys(group.scale for group in self.groups))
        most = max(sum(group.scale == scale for group in self.groups) for scale in panels)
        figure, _ = canvas("", height=max(4.0, NAME_HEIGHT * most), panels=len(panels), below=True)
        longest = max(len(group.label) for group in self.groups)
        figure.set_figwidth(figure.get_figwidth() + NAME_INCHES * max(longest - SHORT_NAME, 0))
        for axes, scale in zip(figure.axes, panels, strict=True):
            groups = [group for group in self.groups if group.scale == scale]
            axes.set_title(scale[0] or "held-out episodes", fontsize=11, loc="left")
            labels = [group.label for group in groups]
            names = [group.name if labels.count(group.label) > 1 else group.label for group in groups]
            curves = [[run.curve(by) for run in group.counted] for group in groups]
            ends = draw_curves(axes, dict(zip(names, curves, strict=True)))
            for place, group in enumerate(groups):
                for run in (run for run in group.runs if run not in group.counted):
                    axes.plot(*run.curve(by).T, color=COLORS[place % len(COLORS)], linewidth=0.7)
            axes.set_xlabel({"steps": steps_of(groups), "seconds": "seconds"}.get(by, by))
            axes.set_ylabel(scale[1].removeprefix("eval/").replace("_", " "))
            if by != "seconds":
                axes.xaxis.set_major_formatter(EngFormatter(sep=""))
            label_ends(axes, ends)
        with naming(path), replacing(path) as temporary:
            save_figure(figure, temporary, metadata={"Software": None} if Path(path).suffix == ".png" else None)

    def __str__(self) -> str:
        notes = [f"note: {note}" for note in self.notes]
        return "\n".join([*_table(self.summary()), *([""] if notes else []), *notes])


def compare(runs: Places | Mapping[str, Places], *, metric: str | None = None) -> Comparison:
    """Compare runs: statistics over the seeds of each config, a table, curves and CSV.

    Args:
        runs: run folders, folders of run folders, or patterns such as ``runs/cue*``. They are grouped by what differs
            in their configs, seed aside; the group of the first run is what the others are compared with. A mapping
            says itself what belongs together: name of a group -> its runs.
        metric: a column of progress.csv such as ``eval/success_rate``; None: mean return of the evaluations (the
            highest over target returns), without an environment the loss on held-out episodes.

    Runs with a damaged file are left out, and named in the notes.

    Raises:
        ConfigError: for a place without a run, runs without evaluations, a metric that a run does not have, and a named
            group of runs in different environments or with different metrics.
        DataError: where all runs are damaged; names a file of the first one.
    """
    check(runs, Places | Mapping[str, Places], "runs")
    damaged: dict[Path, DataError] = {}

    def read(places: Places) -> Iterator[Run]:
        for path in find_runs([places] if isinstance(places, str | os.PathLike) else places):
            try:
                yield _read(path, metric)
            except DataError as error:
                damaged[path] = error

    if isinstance(runs, Mapping):
        named = {name: list(read(places)) for name, places in runs.items()}
    else:
        named = _grouped(list(read(runs)))
    if damaged and not any(named.values()):
        raise next(iter(damaged.values()))
    every = [run for members in named.values() for run in members]
    groups = [Group(name, tuple(run for run in members if run.points)) for name, members in named.items()]
    groups = [group for group in groups if group.runs]
    if not groups:
        reached = ", ".join(f"{run.path} at step {run.step:,} of {run.config.steps:,}" for run in every) or "none"
        raise ConfigError(
            f"no run has an evaluation yet ({reached}); wait for one, set evaluation.every, or go on with "
            "`rltransformers train --resume RUN`"
        )
    for group in groups:
        scales = dict.fromkeys(" ".join(scale_of(run)).strip() for run in group.runs)
        if len(scales) > 1:
            raise ConfigError(
                f"group {group.name!r} has runs that share no scale ({', '.join(scales)}): make several groups of it"
            )
    left_out = [f"{path} is left out: {error}" for path, error in damaged.items()]
    return Comparison(tuple(groups), (*left_out, *_notes(groups, [run for run in every if not run.points])))


def scale_of(run: Run) -> tuple[str, str]:
    """Environment and metric of a run."""
    return environment_of(run.config.to_dict()), run.metric


def check_picture_name(path: str | os.PathLike[str]) -> None:
    """Raise ConfigError unless the ending of a path is that of a picture."""
    if Path(path).suffix not in PICTURES:
        raise ConfigError(f"{os.fspath(path)} must end in {', '.join(PICTURES)}, the formats of pictures")


def lower_is_better(metric: str) -> bool:
    """Whether a metric is a loss or an error."""
    return any(word in metric for word in LOWER)


def estimate(scores: Sequence[float]) -> str:
    """IQM with its interval over runs, for people; one run has none."""
    if not scores:
        return "-"
    return _estimate(float(iqm(scores)), *(iqm_interval(scores) if len(scores) > 1 else (None, None)))


def _estimate(middle: float, low: float | None, high: float | None) -> str:
    return number(middle) if low is None else f"{number(middle)} [{number(low)}, {number(high)}]"


def _grouped(runs: Sequence[Run]) -> dict[str, list[Run]]:
    members: list[tuple[Mapping[str, Any], list[Run]]] = []
    for run in runs:
        config = without_aside(run.config.to_dict())
        equal = next((others for other, others in members if other == config), None)
        if equal is None:
            members.append((config, [run]))
        else:
            equal.append(run)
    names = names_of([others[0].config.to_dict() for _, others in members])
    return {name: others for name, (_, others) in zip(names, members, strict=True)}


def _read(path: Path, metric: str | None) -> Run:
    folder = RunFolder(path)
    try:
        config = read_experiment(folder.config)
    except ConfigError as error:
        raise DataError(str(error)) from error
    rows = folder.read_metrics()
    evaluated = [name for name in (rows[-1] if rows else {}) if name.startswith("eval/")]
    chosen = metric or next((name for name in USUAL if name in evaluated), "")
    if metric is not None and rows and evaluated and metric not in rows[-1]:
        raise ConfigError(f"{path} has no metric {metric!r}; {did_you_mean(metric, list(rows[-1]))}")
    seconds = folder.read_seconds()

    def value_of(row: Mapping[str, str], name: str) -> float:
        try:
            return float(row[name])
        except ValueError as error:
            fault = f"{folder.metrics}: {name} is {row[name]!r} at step {row['step']}, which is no number"
            raise DataError(f"{fault}; mend the row, or leave the run out") from error

    counts = [(int(row["step"]), value_of(row, "train/n_updates")) for row in rows if row.get("train/n_updates")]
    points = []
    for row in rows:
        if row.get(chosen):
            step = int(row["step"])
            counted = value_of(row, "train/n_updates") if row.get("train/n_updates") else None
            updates = _updates(config, counts, step) if counted is None else counted
            points.append(Point(step, seconds.get(step), updates, value_of(row, chosen)))
    last = int(rows[-1]["step"]) if rows else 0
    spent = max(seconds.values()) if seconds else None
    return Run(path, config, chosen, tuple(points), last, spent, max(seconds, default=0), folder.evaluation.is_file())


def _updates(config: ExperimentConfig, counts: Sequence[tuple[int, float]], step: int) -> float | None:
    """Updates until a step whose line of the log has no number of them, between two others by a straight line."""
    if config.agent is AgentName.DECISION_TRANSFORMER:
        return float(step)
    steps, updates = np.array([(0.0, 0.0), *counts]).T
    return float(np.interp(step, steps, updates)) if counts else None


def _notes(groups: Sequence[Group], unevaluated: Sequence[Run]) -> Iterator[str]:
    for group in groups:
        alone = "" if group.counted != group.runs else ", and so are the figures"
        for run in group.runs:
            if not run.finished:
                yield f"{run.path} is not finished, at step {run.step:,} of {run.config.steps:,}{alone}"
        seeds = [run.config.seed for run in group.counted]
        if doubles := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
            noun = f"seed{'' if len(doubles) == 1 else 's'} {', '.join(map(str, doubles))}"
            yield f"{group.name} has {noun} more than once: equal runs make the interval too narrow"
        for run in (run for run in group.counted if math.isnan(run.score)):
            yield f"the last {run.metric} of {run.path} is not a number, and so are the figures of {group.name}"
        for run in (run for run in group.counted if run.seconds is not None and run.points[-1].seconds is None):
            yield f"{run.path} tells no time behind step {run.timed:,}: a TensorBoard file is damaged or missing"
    for run in unevaluated:
        yield f"{run.path} is left out: no evaluation until step {run.step:,} of {run.config.steps:,}"
    environments, metrics = (list(dict.fromkeys(group.scale[index] for group in groups)) for index in (0, 1))
    if len(environments) > 1:
        named = ", ".join(each or "none" for each in environments)
        yield f"scores in different environments ({named}) share no scale: compare the groups of one"
    if len(metrics) > 1:
        yield f"groups have different metrics ({', '.join(metrics)}), which share no scale: give one that all have"
    if len({steps_of([group]) for group in groups}) > 1:
        yield "steps are environment steps online and gradient steps offline: compare by seconds"
    if keys := further_differences([group.runs[0].config.to_dict() for group in groups]):
        yield f"agents in the same environment also differ in {', '.join(keys)}"


def steps_of(groups: Sequence[Group]) -> str:
    """What a step is."""
    offline = {group.runs[0].config.agent is AgentName.DECISION_TRANSFORMER for group in groups}
    return "steps" if len(offline) > 1 else "gradient steps" if True in offline else "environment steps"


def median(values: Iterable[float | None]) -> float | None:
    """Median of the values that are known."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _table(summary: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Lines of columns, from JSON values of groups."""
    metrics = {values["metric"] for values in summary}
    one = metrics.pop() if len(metrics) == 1 else None
    lines = [["group", "seeds", f"{one or 'metric'}, IQM [95 %]", "best", "P(better)", "steps", "time", "steps/s"]]
    for values in summary:
        score = _estimate(values["iqm"], values["low"], values["high"])
        improvement = values["improvement"]
        unfinished = values["unfinished"]
        finished = len(values["runs"]) - unfinished
        lines.append(
            [
                values["group"],
                f"{finished}" if not unfinished else f"{finished} + {unfinished} unfinished",
                score if one else f"{values['metric']} {score}",
                number(values["best"]),
                "-" if improvement is None else f"{improvement:.2f}",
                number(values["steps"]),
                duration(values["seconds"]),
                number(values["steps_per_second"]),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for cells in lines:
        padded = [
            f"{cell:<{width}}" if not place else f"{cell:>{width}}"
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        yield "  ".join(padded).rstrip()


def duration(seconds: float | None) -> str:
    """A time for people."""
    if seconds is None:
        return "-"
    unit, size = next(pair for pair in (("h", 3600.0), ("min", 60.0), ("s", 0.0)) if seconds >= pair[1])
    return f"{seconds / (size or 1):.1f} {unit}"
