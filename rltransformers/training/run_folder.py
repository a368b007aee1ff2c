"""The folder of one run: config, metrics, evaluations, checkpoints and pictures, each under a fixed name."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from stable_baselines3.common.logger import (
    CSVOutputFormat,
    HumanOutputFormat,
    KVWriter,
    Logger,
    TensorBoardOutputFormat,
)

from rltransformers.core.errors import ConfigError
from rltransformers.core.files import replacing
from rltransformers.training.evaluation import EvaluationResult, write_results
from rltransformers.training.plots import plot_learning_curve


class RunFolder:
    """Paths of one run and the few writers that need more than a path.

    ====================== =============================================================================
    config.yaml            the resolved config: what ran, overrides included
    progress.csv           every logged metric, one row per log
    events.out.tfevents.*  the same for TensorBoard
    evaluations.jsonl      one line per evaluation during training: step and all episodes
    last.zip, best.zip     checkpoints; ``*.normalization.zip`` beside them when inputs are normalised
    evaluation.json        the final evaluation
    learning_curve.png     mean evaluation return against steps
    ====================== =============================================================================
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.metrics = self.path / "progress.csv"
        self.evaluations = self.path / "evaluations.jsonl"
        self.last = self.path / "last.zip"
        self.best = self.path / "best.zip"
        self.evaluation = self.path / "evaluation.json"
        self.learning_curve = self.path / "learning_curve.png"

    @classmethod
    def create(cls, root: str | os.PathLike[str], name: str) -> "RunFolder":
        """A new folder ``root/name``, or ``root/name-2``, ``-3``, ... when that exists: no run overwrites another.

        Raises:
            ConfigError: when ``root`` cannot be a folder, because it or one above it is a file.
        """
        try:
            Path(root).mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise ConfigError(f"output {root} cannot be a folder: it, or what should hold it, is a file") from error
        number = 1
        while True:
            path = Path(root) / (name if number == 1 else f"{name}-{number}")
            try:
                path.mkdir()
            except FileExistsError:
                number += 1
            else:
                return cls(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "RunFolder":
        """The folder of an earlier run.

        Raises:
            ConfigError: when ``path`` is not one.
        """
        folder = cls(path)
        if not folder.config.is_file():
            raise ConfigError(
                f"{path} is not a run folder: it has no config.yaml; runs are made by `rltransformers train`"
            )
        return folder

    def write_config(self, config: dict[str, Any]) -> None:
        """Write the resolved config; ``rltransformers train RUN/config.yaml`` repeats the run."""
        with replacing(self.config) as temporary:
            temporary.write_text(yaml.safe_dump(config, sort_keys=False))

    def logger(self, stdout: bool = True) -> Logger:
        """CSV, TensorBoard and, if wanted, console output; the CSV of a resumed run is continued."""
        formats: list[KVWriter] = [_ContinuedCSV(self.metrics), TensorBoardOutputFormat(str(self.path))]
        if stdout:
            formats.append(HumanOutputFormat(sys.stdout))
        return Logger(str(self.path), formats)

    def append_evaluation(self, step: int, results: Sequence[EvaluationResult]) -> None:
        """Add one evaluation; a line that a resumed run repeats replaces the old one."""
        kept = [(old, past) for old, past in self.read_evaluations() if old < step]
        lines = [
            json.dumps({"step": each, "results": [result.to_dict() for result in past]})
            for each, past in [*kept, (step, list(results))]
        ]
        with replacing(self.evaluations) as temporary:
            temporary.write_text("\n".join(lines) + "\n")

    def read_evaluations(self) -> list[tuple[int, list[EvaluationResult]]]:
        """(step, results) of every evaluation so far, in order."""
        if not self.evaluations.is_file():
            return []
        entries = [json.loads(line) for line in self.evaluations.read_text().splitlines()]
        return [(entry["step"], [EvaluationResult.from_dict(r) for r in entry["results"]]) for entry in entries]

    def write_final(self, results: Sequence[EvaluationResult]) -> None:
        """Write the final evaluation as JSON."""
        write_results(self.evaluation, results)

    def plot(self, steps: str) -> None:
        """Draw the learning curve from the evaluations so far; ``steps`` names the x-axis."""
        evaluations = self.read_evaluations()
        if evaluations:
            plot_learning_curve(self.learning_curve, evaluations, self.path.name, steps)


class _ContinuedCSV(CSVOutputFormat):
    """SB3's CSV writer, which empties an existing file; this one goes on behind its last row."""

    def __init__(self, path: Path) -> None:
        if not path.is_file() or not path.stat().st_size:
            super().__init__(str(path))
            return
        self.file = open(path, "r+")  # noqa: SIM115 (closed by close(), as in the parent)
        self.keys = self.file.readline().rstrip("\n").split(",")
        self.separator, self.quotechar = ",", '"'
        self.file.seek(0, os.SEEK_END)
