"""The folder of one run: config, metrics, evaluations, checkpoints and pictures, each under a fixed name."""

import csv
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from stable_baselines3.common.logger import HumanOutputFormat, KVWriter, Logger, TensorBoardOutputFormat
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter

from rltransformers.core.errors import ConfigError, DataError, one_line
from rltransformers.core.files import (
    check_folder,
    check_name,
    check_run,
    file_lock,
    naming,
    numbered,
    remove_left_overs,
    replacing,
    sync,
)
from rltransformers.core.yaml_text import yaml_of
from rltransformers.training.evaluation import EvaluationResult, write_results
from rltransformers.training.offline.validation import ValidationResult
from rltransformers.training.runs.plots import plot_learning_curve, plot_validation_curve

FRAME = 16
"""Bytes around a record of a TensorBoard file: its length and two checksums."""


class Entry(NamedTuple):
    """One evaluation: the step, the results in the environment if there is one, and those on held-out episodes."""

    step: int
    results: list[EvaluationResult]
    validation: ValidationResult | None = None


class _Known(NamedTuple):
    """The evaluations in a file whose last line has its end, as long as the file has this stamp."""

    stamp: tuple[int, ...]
    evaluations: list[Entry]


class RunFolder:
    """Paths of one run and the few writers that need more than a path.

    ====================== =============================================================================
    config.yaml            the resolved config: what ran, overrides included
    progress.csv           every logged metric, one row per log; ``step`` is the training step
    events.out.tfevents.*  the same for TensorBoard
    evaluations.jsonl      one line per evaluation during training: step and all episodes
    last.zip, best.zip     checkpoints; ``*.normalization.zip`` beside those of a normalized recurrent_ppo
    evaluation.json        the final evaluation
    validation.json        the same on held-out episodes, where there are any
    learning_curve.png     mean evaluation return against steps; without an environment, loss on held-out episodes
    .lock                  held by the process that trains here
    .job                   which job of torchrun the run belongs to, where there is one
    .config.yaml           config.yaml as it was written, to tell whether somebody has edited it
    ====================== =============================================================================
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.begun = self.path / ".config.yaml"
        self.metrics = self.path / "progress.csv"
        self.evaluations = self.path / "evaluations.jsonl"
        self.last = self.path / "last.zip"
        self.best = self.path / "best.zip"
        self.evaluation = self.path / "evaluation.json"
        self.validation = self.path / "validation.json"
        self.learning_curve = self.path / "learning_curve.png"
        self._known: _Known | None = None

    @classmethod
    def create(cls, root: str | os.PathLike[str], name: str) -> "RunFolder":
        """A new folder ``root/name``, or ``root/name-2``, ``-3``, ... when that exists: no run overwrites another."""
        check_name(name)
        check_folder(root, "output").mkdir(parents=True, exist_ok=True)
        for each in numbered(name):
            with suppress(FileExistsError):
                (Path(root) / each).mkdir()
                break
        return cls(Path(root) / each)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "RunFolder":
        """The folder of an earlier run; ConfigError when ``path`` is not one."""
        check_run(path)
        return cls(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder against other trainers within the block, and delete half-written files.

        Reading is free. The lock goes with the process, however that ends.

        Raises:
            ConfigError: when another process trains here; names it.
        """
        with file_lock(self.path / ".lock", f"run folder {self.path}", ConfigError):
            written = (self.config, self.begun, self.metrics, self.evaluations, self.last, self.best, self.evaluation)
            normalization = (statistics_path(path) for path in (self.last, self.best))
            remove_left_overs(*written, self.validation, self.learning_curve, *normalization, *self.event_files())
            yield

    def event_files(self) -> list[Path]:
        """TensorBoard files, in the order they were written."""
        return sorted(self.path.glob("events.out.tfevents.*"))

    def cut(self, step: int, evaluated: bool = True) -> None:
        """Take back what was logged after ``step``, the step of the checkpoint that training goes on from.

        A checkpoint is written after the metrics of its step and before the evaluation of it: rows of that evaluation
        stay when the evaluation is complete, which is when ``evaluations.jsonl`` has it. Without ``evaluated`` it goes
        too, to be made again.
        """
        lines = [(entry.step, line) for entry, line in self._evaluations()]
        earlier = [(at, line) for at, line in lines if at < step or (evaluated and at == step)]
        self._write_evaluations([line for _, line in earlier])
        evaluated = bool(earlier) and earlier[-1][0] == step
        MetricsCSV.cut(self.metrics, step, evaluated)
        cut_event_files(self.event_files(), step, evaluated)

    def write_config(self, config: dict[str, Any]) -> None:
        """Write the resolved config and its copy; ``rltransformers train RUN/config.yaml`` repeats the run."""
        for path in (self.begun, self.config):  # a folder with a config is that of a run
            with replacing(path) as temporary:
                temporary.write_text(yaml_of(config))

    def logger(self, stdout: bool = True) -> Logger:
        """CSV, TensorBoard and, if wanted, console output; the CSV of a resumed run is continued."""
        with naming(self.metrics):
            formats: list[KVWriter] = [MetricsCSV(self.metrics), _TensorBoard(str(self.path))]
        if stdout:
            formats.append(HumanOutputFormat(sys.stdout))
        return Logger(str(self.path), formats)

    def sync_logs(self) -> None:
        """Return when metrics have reached the disk: of a checkpoint they are there before it, power cut or not."""
        for path in (self.metrics, *self.event_files()):
            if path.is_file():
                sync(path)

    def append_evaluation(
        self, step: int, results: Sequence[EvaluationResult], validation: ValidationResult | None = None
    ) -> None:
        """Add one evaluation; a line that a resumed run repeats replaces the old one.

        A process that is killed here leaves a line without an end, which reading leaves out.
        """
        values: dict[str, Any] = {"step": step, "results": [result.to_dict() for result in results]}
        line = json.dumps(values if validation is None else values | {"validation": validation.to_dict()})
        past = self.entries()
        if self._known is None or any(entry.step >= step for entry in past):
            earlier = [each for entry, each in self._evaluations() if entry.step < step]
            self._write_evaluations([*earlier, line])
            return
        with naming(self.evaluations), open(self.evaluations, "ab") as file:
            file.write(f"{line}\n".encode())
            file.flush()
            os.fsync(file.fileno())
        self._known = _Known(_stamp(self.evaluations), [*past, _evaluation(line)])

    def _write_evaluations(self, lines: Sequence[str]) -> None:
        if lines or self.evaluations.exists():
            with replacing(self.evaluations) as temporary:
                temporary.write_text("".join(f"{line}\n" for line in lines))

    def read_evaluations(self) -> list[tuple[int, list[EvaluationResult]]]:
        """(step, results) of every evaluation so far, in order; an unfinished last line is left out."""
        return [(entry.step, entry.results) for entry in self.entries()]

    def entries(self) -> list[Entry]:
        """Every evaluation so far, in order; an unfinished last line is left out."""
        stamp = _stamp(self.evaluations)
        if self._known is None or self._known.stamp != stamp:
            evaluations = [entry for entry, _ in self._evaluations()]
            ended = self.evaluations.is_file() and self.evaluations.read_bytes().endswith(b"\n")
            self._known = _Known(stamp, evaluations) if ended else None
            return evaluations
        return list(self._known.evaluations)

    def read_metrics(self) -> list[dict[str, str]]:
        """Rows of progress.csv, each with its step; empty text where a row has no such metric. None: no rows.

        Raises:
            DataError: for a damaged row; names it.
        """
        return _read_rows(self.metrics)[1] if self.metrics.is_file() else []

    def read_seconds(self) -> dict[int, float]:
        """Seconds of training and evaluation up to every logged step, of all processes that trained here, one after
        the other; empty without TensorBoard files.
        """
        known: dict[int, float] = {}
        before = 0.0
        for path in self.event_files():
            first = last = None
            for record in RawEventFileLoader(str(path)).Load():  # which ends at a torn one
                event = Event.FromString(record)
                first, last = event.wall_time if first is None else first, event.wall_time
                if event.HasField("summary"):
                    known[event.step] = before + last - first
            before += 0.0 if first is None or last is None else last - first
        return known

    def _evaluations(self) -> list[tuple[Entry, str]]:
        """Every evaluation so far with its line of the file, in order."""
        if not self.evaluations.is_file():
            return []
        lines = self.evaluations.read_bytes().split(b"\n")
        evaluations = []
        for number, line in enumerate(lines, 1):
            try:
                if line.strip():
                    evaluations.append((_evaluation(line), line.decode()))
            except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
                if number == len(lines):  # without an end: what wrote it was killed
                    break
                raise DataError(
                    f"{self.evaluations}, line {number} is damaged ({one_line(error)}); delete that line, "
                    "the evaluations in the others are kept"
                ) from error
        return evaluations

    def write_final(self, results: Sequence[EvaluationResult], validation: ValidationResult | None = None) -> None:
        write_results(self.evaluation, results)
        if validation is not None:
            with replacing(self.validation) as temporary:
                temporary.write_text(json.dumps(validation.to_dict(), indent=1) + "\n")

    def plot(self, steps: str) -> None:
        """Draw the learning curve from the evaluations so far; ``steps`` names the x-axis."""
        entries = self.entries()
        played = [(entry.step, entry.results) for entry in entries if entry.results]
        losses = [(entry.step, entry.validation.action_loss) for entry in entries if entry.validation is not None]
        if played:
            plot_learning_curve(self.learning_curve, played, self.path.name, steps)
        elif losses:
            plot_validation_curve(self.learning_curve, losses, self.path.name, steps)


def statistics_path(checkpoint: Path) -> Path:
    """Where the statistics of ``VecNormalize`` stand that belong to the checkpoint of a baseline."""
    return checkpoint.with_suffix(".normalization.zip")


def _stamp(path: Path) -> tuple[int, ...]:
    """What changes with the content of a file; nothing for one that is not there."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _evaluation(line: str | bytes) -> Entry:
    entry = json.loads(line)
    validation = ValidationResult.from_dict(entry["validation"]) if "validation" in entry else None
    return Entry(int(entry["step"]), [EvaluationResult.from_dict(each) for each in entry["results"]], validation)


class _TensorBoard(TensorBoardOutputFormat):
    """SB3's TensorBoard writer; errors, which belong to a thread of its own, name the folder."""

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        with naming(f"{self.writer.log_dir}/events.out.tfevents"):
            super().write(key_values, key_excluded, step)

    def close(self) -> None:
        with naming(f"{self.writer.log_dir}/events.out.tfevents"):
            super().close()


class MetricsCSV(KVWriter):
    """One row per log behind those that are there; a new metric adds a column at the end, ``step`` is the first.

    The writer of Stable-Baselines3 empties an existing file and orders columns by chance. Here a killed process leaves
    whole rows and at most one torn last one, which ``cut`` removes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file() or not path.stat().st_size:
            path.write_text("step\n")
        self.columns, _ = _read_rows(path)
        self.file = open(path, "a", newline="", encoding="utf-8")  # noqa: SIM115 (closed by close())

    @staticmethod
    def cut(path: Path, step: float, evaluated: bool) -> None:
        """Keep the rows up to ``step``, those of its evaluation only where it is ``evaluated``; torn rows go."""
        if not path.is_file():
            return
        columns, rows = _read_rows(path)
        earlier = []
        for row in rows:
            at, is_evaluation = int(row["step"]), any(row[name] for name in row if name.startswith("eval/"))
            if at < step or (at == step and (evaluated or not is_evaluation)):
                earlier.append(row)
        # A column that only lost rows had goes with them: a run that was not stopped has not met its metric yet.
        present = [name for name in columns if name != "step" and any(row.get(name) for row in earlier)]
        _write_rows(path, ["step", *present], earlier)

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        row = {"step": str(step)} | {
            name: str(value)
            for name, value in key_values.items()
            if "csv" not in (key_excluded.get(name) or ()) and isinstance(value, np.ScalarType)
        }
        new = sorted(set(row) - set(self.columns))
        if new:
            self.file.close()
            self.columns = [*self.columns, *new]
            _write_rows(self.path, self.columns, _read_rows(self.path)[1])
            self.file = open(self.path, "a", newline="", encoding="utf-8")  # noqa: SIM115 (closed by close())
        with naming(self.path):
            self.file.write(_line(row.get(name, "") for name in self.columns))
            self.file.flush()

    def close(self) -> None:
        with naming(self.path):
            self.file.close()


def _read_rows(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Columns and whole rows of a metrics file, each with its step."""
    content = path.read_bytes()
    try:
        text = content[: content.rfind(b"\n") + 1].decode()
    except UnicodeDecodeError as error:
        raise _damaged(path, content[: error.start].count(b"\n") + 1, str(error)) from error
    reader = csv.reader(io.StringIO(text, newline=""))
    rows: list[dict[str, str]] = []
    try:
        columns = next(reader, ["step"])
        for values in reader:
            row = dict(zip(columns, values, strict=False))
            step = row.get("step", "")
            if not step.isdecimal():
                raise _damaged(path, reader.line_num, f"its step is {step!r}")
            rows.append(row)
    except csv.Error as error:
        raise _damaged(path, reader.line_num, str(error)) from error
    return columns, rows


def _damaged(path: Path, line: int, fault: str) -> DataError:
    return DataError(f"{path}, line {line} is damaged ({fault}); mend it, or move the file away to begin a new one")


def _write_rows(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> None:
    with replacing(path) as temporary:
        lines = [_line(columns), *(_line(row.get(name, "") for name in columns) for row in rows)]
        temporary.write_text("".join(lines), encoding="utf-8", newline="")


def _line(values: Iterable[str]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()


def cut_event_files(paths: Sequence[Path], step: int, evaluated: bool) -> None:
    """Keep the summaries up to ``step`` in TensorBoard files, those of one run in the order they were written.

    Those of its evaluation stay only where it is ``evaluated``: tags are written in alphabetical order, so they begin
    with the first ``eval/``. A torn last record goes too, and a file that keeps nothing but its header. A marker of a
    restart (``purge_step``) would not do: readers differ in what they make of it.
    """
    evaluating = False
    for path in paths:
        records = []
        for record in RawEventFileLoader(str(path)).Load():  # which ends at a torn one
            event = Event.FromString(record)
            if event.HasField("summary"):
                tags = [value.tag for value in event.summary.value]
                evaluating |= event.step == step and any(tag.startswith("eval/") for tag in tags)
                if event.step > step or (event.step == step and evaluating and not evaluated):
                    continue
            records.append(record)
        if not any(event.HasField("summary") for event in map(Event.FromString, records)):
            path.unlink()
        elif sum(len(record) + FRAME for record in records) != path.stat().st_size:
            with replacing(path) as temporary, temporary.open("wb") as file:
                writer = RecordWriter(file)
                for record in records:
                    writer.write(record)
