"""Run the cells of a suite that are missing, and write its CSV, tables and pictures: `rltransformers suite SUITE`.

A suite is a YAML in configs/suites/ (tasks x variants x seeds). Runs that stand in the CSV are skipped, killed ones go
on from their last checkpoint. docs/results/README.md explains the figures.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rltransformers.cli.engines import Engine, Order, carry_out, engine_of
from rltransformers.cli.trust import Program, collect_programs, environment_programs, programs, require_trust
from rltransformers.core.described import number
from rltransformers.core.errors import ConfigError, DataError
from rltransformers.core.files import file_lock
from rltransformers.training.runs.run_folder import RunFolder
from rltransformers.zoo import cell as cells
from rltransformers.zoo import report
from rltransformers.zoo.facts import checkout
from rltransformers.zoo.suites import Cell, Suite, chosen, read_suite
from rltransformers.zoo.table import Row, current, differences, matches, read_rows, record

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
CELL = ("-m", "rltransformers.zoo.cell")
LOG_LINES = 15


def reproduce(
    name: str,
    *,
    seeds: int | None = None,
    only: Sequence[str] = (),
    results: str | None = None,
    runs: str | None = None,
    behaviors: str | None = None,
    trust: bool = False,
    jobs: int | None = None,
    engine: str = "local",
    address: str | None = None,
    dry_run: bool = False,
    report_only: bool = False,
) -> int:
    """Run what is missing of a suite and write CSV, tables and pictures; the number of runs that failed.

    ``jobs`` None is the cores of the engine. Arguments are the options of `rltransformers suite`.

    Raises:
        ConfigError, DataError, MissingExtraError: for a suite that cannot be meant, and for what its runs lack.
    """
    suite = read_suite(name, trust)
    work = Work(suite, *folders(suite.name, results, runs), behaviors, trust)
    failed = 0
    if not report_only:
        wanted = chosen(list(suite.cells(seeds)), only)
        if dry_run:
            work.tell(wanted)
            return 0
        with closing(engine_of(engine, address)) as processes:
            failed = work.do(wanted, processes, jobs)
    for path in report.write(suite, work.results):
        print(f"written  {relative(path)}")
    return failed


def published() -> Path | None:
    """The folder of the committed results where the program runs in its checkout; None elsewhere."""
    root = checkout()
    return root / "docs" / "results" if root is not None and Path.cwd().is_relative_to(root) else None


def folders(suite: str, results: str | None, runs: str | None) -> tuple[Path, Path]:
    """Where results and runs go. Other results do not reuse the runs of the committed ones: they repeat them."""
    committed = published()
    if results is None and committed is not None:
        return committed, Path(runs or committed.parents[1] / "runs" / "results").resolve()
    results = results or f"results/{suite}"
    return Path(results).resolve(), Path(runs or f"{results}/runs").resolve()


@dataclass
class Work:
    """The runs of one suite, in one results folder."""

    suite: Suite
    results: Path
    runs: Path
    behaviors: str | None = None
    trust: bool = False

    @property
    def csv(self) -> Path:
        """The suite's figures."""
        return self.results / f"{self.suite.name}.csv"

    def folder(self, cell: Cell) -> Path:
        return self.runs / self.suite.name / cell.task / cell.folder

    def tell(self, wanted: Sequence[Cell]) -> None:
        """Say what ``do`` would run."""
        missing = [cell for cell in wanted if cell.key not in current(self.suite, read_rows(self.csv))]
        print(self._counts(wanted, missing))
        for cell in missing:
            print(f"  {cell}  {relative(self.folder(cell))}")

    def do(self, wanted: Sequence[Cell], engine: Engine, jobs: int | None) -> int:
        """Run what is missing, ``jobs`` at a time; the number of cells that failed."""
        done = current(self.suite, read_rows(self.csv))
        missing = [cell for cell in wanted if cell.key not in done and not self._collected(cell)]
        if not missing:
            print(self._counts(wanted, missing))
            return 0
        jobs = jobs or engine.slots
        seconds = remaining(missing, done.values(), jobs)
        print(
            f"{self._counts(wanted, missing)}, {jobs} at a time{about(seconds)}; "
            f"logs beside the run folders in {relative(self.runs / self.suite.name)}",
            flush=True,
        )
        require_trust(self._programs(missing), f"suite {self.suite.name}", self.trust)
        self._make_datasets(missing)
        return self._run(missing, engine, jobs)

    def _counts(self, wanted: Sequence[Cell], missing: Sequence[Cell]) -> str:
        done = len(wanted) - len(missing)
        return f"{self.suite.text.title}: {len(wanted)} runs, {done} done, {len(missing)} to do"

    def _programs(self, missing: Sequence[Cell]) -> list[Program]:
        """Programs besides this package that these cells, and the datasets recorded for them, run."""
        found: list[Program] = []
        for cell in missing:
            folder = RunFolder(self.folder(cell))
            goes_on = cells.resumable(folder.path, cell.config)
            found += programs(cell.config, folder.last if goes_on else None)
        for task in dict.fromkeys(cell.task for cell in missing):
            for name, transfer in self.suite.tasks[task].transfers.items():
                found += environment_programs(transfer.id or "", place=f"tasks.{task}.transfers.{name}.id")
        for words in self._lacking(missing).values():
            found += collect_programs(shlex.split(words))
        return list(dict.fromkeys(found))

    def _lacking(self, missing: Sequence[Cell]) -> dict[str, str]:
        """The datasets that these cells need and that are not on this machine, with the words that record them."""
        from minari.storage import get_dataset_path  # slow to import

        needed = [cell.config.dataset.id for cell in missing if cell.config.dataset is not None]
        return {
            dataset: words
            for dataset, words in self.suite.text.datasets.items()
            if dataset in needed and not (get_dataset_path(dataset) / "data").exists()
        }

    def _collected(self, cell: Cell) -> bool:
        """Record the row that a cell left when the process that ordered it was killed."""
        row = cells.read_row(self.folder(cell))
        if row is None or not matches(row, cell):
            return False
        self._record(cell, row)
        return True

    def _record(self, cell: Cell, row: Row) -> None:
        record(self.csv, self.suite, row)
        cells.forget_row(self.folder(cell))

    def _run(self, missing: Sequence[Cell], engine: Engine, jobs: int) -> int:
        left, ended = list(missing), list[bool]()

        def end(cell: Cell, status: int) -> None:
            left.remove(cell)
            ended.append(self._finish(cell, status, f"[{len(ended) + 1}/{len(missing)}]", left, jobs))

        carry_out(engine, ((cell, self.order(cell)) for cell in missing), jobs, end)
        return ended.count(False)

    def order(self, cell: Cell) -> Order:
        """The process that runs a cell; it ends when its input does."""
        folder, task = self.folder(cell), self.suite.tasks[cell.task]
        return Order(
            CELL,
            cells.order_of(cell, folder, task, self.suite.text.metrics),
            folder.with_name(f"{folder.name}.log"),
            (cells.row_file(folder),),
            ONE_THREAD,
        )

    def _finish(self, cell: Cell, status: int, place: str, left: Sequence[Cell], jobs: int) -> bool:
        folder = self.folder(cell)
        row = cells.read_row(folder) if status == 0 else None
        if row is None or not matches(row, cell):
            log = folder.with_name(f"{folder.name}.log")
            print(f"{place} FAILED (status {status}): {cell}; the last lines of {relative(log)}:", flush=True)
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
            print("\n".join(f"    {line}" for line in lines), flush=True)
            return False
        self._record(cell, row)
        seconds = remaining(left, current(self.suite, read_rows(self.csv)).values(), jobs)
        print(
            f"{place} {cell}: {number(row.score)} after {row.wall_seconds / 60:.1f} min; "
            f"{len(left)} left{about(seconds)}{self._compared(row)}",
            flush=True,
        )
        return True

    def _compared(self, row: Row) -> str:
        """How a repeated run compares to its published row; empty for what is published here or has no row."""
        folder = published()
        if folder is None or self.results == folder:
            return ""
        known = current(self.suite, read_rows(folder / f"{self.suite.name}.csv")).get(row.key)
        if known is None:
            return ""
        other = differences(row, known)
        if not other:
            return f"; to the digit as published (commit {known.commit})"
        where = f"commit {known.commit} on {known.machine}"
        return f"; published at {where}: {number(known.score)}, other {', '.join(other)}"

    def _make_datasets(self, missing: Sequence[Cell]) -> None:
        """Record the datasets that these cells need and that are not on this machine."""
        from minari.storage import get_dataset_path  # slow to import

        for dataset, words in self._lacking(missing).items():
            command = [*shlex.split(with_behaviors(words, dataset, self.behaviors)), "--dataset", dataset]
            lock = self.runs / f"{self.suite.name}.datasets.lock"
            with file_lock(lock, f"the datasets of {self.suite.name}", DataError, wait=True):
                if (get_dataset_path(dataset) / "data").exists():
                    continue  # another process has just recorded it
                print(f"recording {dataset}: rltransformers collect {shlex.join(command)}", flush=True)
                done = subprocess.run(
                    [sys.executable, "-P", "-m", "rltransformers.cli.main", "collect", *command],
                    env=os.environ | ONE_THREAD,
                    stdout=subprocess.DEVNULL,
                    check=False,
                )
            if done.returncode:
                raise DataError(f"dataset {dataset} could not be recorded; the reason stands above")


def with_behaviors(words: str, dataset: str, folder: str | None) -> str:
    """The arguments of `collect` with the folder of trained policies.

    Raises:
        ConfigError: when it is needed and not given, or files are missing in it.
    """
    expected = re.findall(r"\{behaviors\}/([^\s:=]+)", words)
    if not expected:
        return words
    if folder is None:
        raise ConfigError(
            f"dataset {dataset} is missing and recorded from trained policies: give --behaviors DIR, a folder that "
            f"holds {', '.join(dict.fromkeys(expected))}"
        )
    lacking = [name for name in dict.fromkeys(expected) if not (Path(folder) / name).is_file()]
    if lacking:
        raise ConfigError(f"--behaviors {folder} lacks {', '.join(lacking)}, which dataset {dataset} is recorded from")
    return words.replace("{behaviors}", shlex.quote(str(Path(folder).resolve())))


def remaining(left: Sequence[Cell], rows: Iterable[Row], jobs: int) -> float | None:
    """Seconds that these cells will take, from runs of the same variant, else task, else any; None without runs."""
    known: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        if row.parameters is not None:  # scoring a dataset says nothing about training
            for key in ((row.task, row.variant), (row.task,), ()):
                known.setdefault(key, []).append(row.wall_seconds)
    if not known or not left:
        return None
    total = 0.0
    for cell in left:
        keys: list[tuple[str, ...]] = [(cell.task, cell.variant), (cell.task,), ()]
        times = next(known[key] for key in keys if key in known)
        total += 0.0 if cell.of_data else sum(times) / len(times)
    return total / min(jobs, len(left))


def about(seconds: float | None) -> str:
    """A time in words, with a comma before it."""
    if seconds is None:
        return ""
    minutes = max(1, round(seconds / 60))
    return f", about {minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f", about {minutes} min"


def relative(path: Path) -> Path:
    """A path inside the current folder without that folder."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
