"""The CSV of a suite: one row per run, rewritten after every run; several processes may add rows at a time."""

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from rltransformers.core.errors import DataError
from rltransformers.core.files import file_lock, replacing
from rltransformers.zoo.suites import Cell, Suite

Result = dict[str, float | None]
"""target_return, return_mean, return_std, success_rate of one evaluation; None where undefined. Of a transfer also
microseconds, the processor time of a step of one environment."""


@dataclass(frozen=True)
class Row:
    """One run, or the mean of a dataset.

    Attributes:
        score: of the final weights, as the task defines it.
        episodes: of the final evaluation, per target return; of the dataset.
        steps: environment steps online, gradient steps offline; steps of the dataset.
        wall_seconds: training and evaluation; after a kill, of the part that the last checkpoint kept.
        steps_per_cpu_second: ``steps`` by the processor time of training and evaluation, which hardly depends on what
            else runs; None for a run that was killed and went on.
        state_bytes: what acting carries from step to step per environment.
        results: one entry per target return.
        curve: [step, score] of every evaluation on the way.
        transfers: results of the final weights in the task's ``transfers``, by name.
        metrics: last value of the metrics that the suite names.
        recording: fingerprint of the recorded dataset that the run learned from; empty where it has none, or where the
            row is older than this column.
    """

    task: str
    variant: str
    seed: int
    score: float
    episodes: int
    steps: int
    wall_seconds: float
    steps_per_cpu_second: float | None = None
    parameters: int | None = None
    state_bytes: int | None = None
    results: list[Result] = field(default_factory=list)
    curve: list[list[float]] = field(default_factory=list)
    transfers: dict[str, Result] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    recording: str = ""
    config_hash: str = ""
    commit: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    machine: str = ""
    date: str = ""

    @property
    def key(self) -> tuple[str, str, int]:
        return self.task, self.variant, self.seed

    @property
    def cpu_seconds(self) -> float | None:
        """Processor time of training and evaluation; None where it is not known."""
        return self.steps / self.steps_per_cpu_second if self.steps_per_cpu_second else None

    def metric(self, name: str, budget: float | None = None) -> float | None:
        """A column, a logged metric, or a statistic of the scores of all evaluations.

        ``curve_mean`` is their mean, higher for early learning; ``curve_max`` is the highest; ``equal_time`` is the
        score when ``budget`` seconds of a processor were spent, between two evaluations in proportion.
        """
        if name == "equal_time":
            if budget is None or self.cpu_seconds is None or not self.curve:
                return None
            steps, evaluated = zip(*self.curve, (self.steps, self.score), strict=True)
            return float(np.interp(self.steps * budget / self.cpu_seconds, steps, evaluated))
        scores = [score for _, score in self.curve]
        if name == "curve_mean":
            return sum(scores) / len(scores) if scores else None
        if name == "curve_max":
            return max(scores, default=None)
        value = getattr(self, name) if name in COLUMNS else self.metrics.get(name)
        return None if value is None else float(value)

    def score_in(self, transfer: str | None, score: str) -> float:
        """The score in one of the environments of ``transfers``; None: in that of training."""
        return self.score if transfer is None else score_of([self.transfers[transfer]], score)


COLUMNS = tuple(each.name for each in fields(Row))
_JSON = ("results", "curve", "transfers", "metrics", "versions")
_WHOLE = ("seed", "episodes", "steps", "parameters", "state_bytes")
_REAL = ("score", "wall_seconds", "steps_per_cpu_second")


def score_of(results: Sequence[Result], score: str, target: float | None = None) -> float:
    """Mean return or success rate of the evaluation with this target return; of the only one where there is one.

    Raises:
        DataError: when there is no such result, or the environment does not tell success.
    """
    found = list(results) if len(results) == 1 else [each for each in results if each["target_return"] == target]
    if not found:
        asked = [each["target_return"] for each in results]
        raise DataError(f"no result has the target return {target}; there are {asked}")
    value = found[0]["return_mean" if score == "return" else "success_rate"]
    if value is None:
        raise DataError("score: success, but the environment does not report is_success; use score: return")
    return float(value)


def read_rows(path: Path) -> list[Row]:
    """Rows of a CSV; none when it does not exist.

    Raises:
        DataError: for a line that is no row; names it.
    """
    if not path.is_file():
        return []
    rows, line = [], 1
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            for values in reader:
                line = reader.line_num
                if None in values.values() or None in values:
                    raise ValueError("it has another number of cells than the first line")
                rows.append(_parse(values))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, csv.Error) as error:
        raise DataError(
            f"{path}, line {line} is damaged ({type(error).__name__}: {error}); restore the file, or delete the "
            "line to repeat its run"
        ) from error
    return rows


def current(suite: Suite, rows: Sequence[Row]) -> dict[tuple[str, str, int], Row]:
    """Rows whose config is that of the suite today, in the order of the suite, their score by its present rule."""
    newest = {}
    for row in sorted(rows, key=_order(suite)):
        variant = suite.variants.get(row.task, {}).get(row.variant)
        if variant is not None and variant.config_hash == row.config_hash:
            task = suite.tasks[row.task]
            score = row.score if variant.of_data else score_of(row.results, task.score, task.target)
            newest[row.key] = replace(row, score=score)
    return newest


def record(path: Path, suite: Suite, row: Row) -> None:
    """Add ``row`` to the CSV, in place of an older one of the same cell; what others added meanwhile is kept."""
    with file_lock(path.with_name(f".{path.stem}.lock"), f"the table {path}", DataError, wait=True):
        rows = [row, *(old for old in read_rows(path) if old.key != row.key)]
        with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(_cells(each) for each in sorted(rows, key=_order(suite)))


def matches(row: Row, cell: Cell) -> bool:
    """Whether ``row`` is of that run with its present config."""
    return row.key == cell.key and row.config_hash == cell.config_hash


def differences(row: Row, published: Row) -> list[str]:
    """Columns in which a repeated run is not its published row to the digit; what a clock measured is left out."""
    names = ("score", "episodes", "steps", "parameters", "state_bytes", "results", "curve", "transfers", "metrics")
    ours, theirs = map(_timeless, (row, published))
    return [name for name in names if ours[name] != theirs[name]]


def _timeless(row: Row) -> dict[str, Any]:
    """The columns with the digits that the CSV stores, without what a clock measured."""
    row = _parse({name: str(value) for name, value in _cells(row).items()})
    transfers = {
        name: {key: value for key, value in result.items() if key != "microseconds"}
        for name, result in row.transfers.items()
    }
    metrics = {name: value for name, value in row.metrics.items() if not name.startswith("time/")}
    return vars(row) | {"transfers": transfers, "metrics": metrics}


def _order(suite: Suite) -> Callable[[Row], tuple[Any, ...]]:
    """Sorting key: as in the YAML, what it does not name (any more) behind."""
    tasks = list(suite.tasks)
    places = {(task, name): place for task in tasks for place, name in enumerate(suite.tasks[task].variants)}

    def key(row: Row) -> tuple[Any, ...]:
        task = tasks.index(row.task) if row.task in tasks else len(tasks)
        return task, places.get((row.task, row.variant), len(places)), row.task, row.variant, row.seed

    return key


def _cells(row: Row) -> dict[str, Any]:
    values = asdict(row)
    for name in _JSON:
        values[name] = json.dumps(values[name]) if values[name] else ""
    for name in _REAL:
        values[name] = "" if values[name] is None else f"{values[name]:.6g}"
    return {name: "" if value is None else value for name, value in values.items()}


def _parse(values: dict[str, str]) -> Row:
    read: dict[str, Any] = {name: value for name, value in values.items() if name in COLUMNS}
    for name in _JSON:
        read[name] = json.loads(values[name]) if values.get(name) else ([] if name in ("results", "curve") else {})
    for names, kind in ((_WHOLE, int), (_REAL, float)):
        for name in names:
            read[name] = kind(values[name]) if values.get(name) else None
    return Row(**read)
