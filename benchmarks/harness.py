"""How every benchmark here measures: ours and the peer in turn inside one process, medians, ranges, ratios.

Absolute times of a shared machine drift by a factor of two within minutes; the ratio of two things timed alternately
does not. A comparison runs A B A B ... and reports the median of the ratios of neighboring runs with their range.
"""

import csv
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from stable_baselines3.common.callbacks import BaseCallback

from rltransformers.zoo.facts import device
from rltransformers.zoo.facts import parameters as parameters
from rltransformers.zoo.facts import versions as versions

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "benchmarks"
PACKAGES = (
    "torch", "numpy", "stable-baselines3", "sb3-contrib", "transformers", "x-transformers", "gymnasium", "minari",
)  # fmt: skip

Timed = Callable[[], float | None]
"""Does the work once. Returns the seconds that count (so that preparation can be left out), or None for all of them."""


@dataclass(frozen=True)
class Row:
    """One line of a table and of the CSV.

    Attributes:
        name: what is measured, e.g. "DT update".
        setting: sizes, in words, complete enough to repeat the measurement.
        unit: of ``ours`` and ``peer``, e.g. "ms per update", "MB".
        ours, peer: medians; peer is NaN for an absolute measurement.
        peer_name: what ours is compared with.
        ratio: what ``target`` speaks of, with its lowest and highest repetition.
        target: bound of the ratio or of ours, as text, e.g. ">= 1.5".
        met: whether it was reached; None without a target.
        repetitions: of each side.
        threads: torch threads.
        note: anything a reader has to know.
    """

    name: str
    setting: str
    unit: str
    ours: float
    peer: float = math.nan
    peer_name: str = ""
    ratio: float = math.nan
    low: float = math.nan
    high: float = math.nan
    target: str = ""
    met: bool | None = None
    repetitions: int = 1
    threads: int = field(default_factory=torch.get_num_threads)
    note: str = ""


@dataclass(frozen=True)
class Pair:
    """Seconds of ours and of the peer, run alternately."""

    ours: list[float]
    peer: list[float]

    def row(
        self, name: str, setting: str, unit: str, peer_name: str, target: str, *, scale: float = 1.0, note: str = ""
    ) -> Row:
        """A row whose ratio is peer seconds / our seconds (above 1: ours is faster).

        Args:
            scale: turns seconds of one run into ``unit`` (1e3 for ms, 1e3 / steps for ms per step).
            target: ">= x" or "<= x" for that ratio, or "" for none.
        """
        ratios = [peer / ours for ours, peer in zip(self.ours, self.peer, strict=True)]
        ratio = statistics.median(ratios)
        return Row(
            name, setting, unit, statistics.median(self.ours) * scale, statistics.median(self.peer) * scale, peer_name,
            ratio, min(ratios), max(ratios), target, meets(ratio, target), len(ratios), note=note,
        )  # fmt: skip


class Stopwatch(BaseCallback):
    """Seconds that every rollout took."""

    def __init__(self) -> None:
        super().__init__()
        self.rollouts: list[float] = []

    def _on_rollout_start(self) -> None:
        self.began = time.perf_counter()

    def _on_rollout_end(self) -> None:
        self.rollouts.append(time.perf_counter() - self.began)

    def _on_step(self) -> bool:
        return True


def timed(work: Timed) -> float:
    """Seconds of one run of ``work``."""
    began = time.perf_counter()
    counted = work()
    spent = time.perf_counter() - began
    return spent if counted is None else counted


def interleave(ours: Timed, peer: Timed, repetitions: int = 5, warmup: int = 1) -> Pair:
    """Ours, peer, ours, peer, ...; the first ``warmup`` rounds do not count."""
    rounds = [(timed(ours), timed(peer)) for _ in range(warmup + repetitions)][warmup:]
    return Pair([a for a, _ in rounds], [b for _, b in rounds])


def repeat(work: Timed, repetitions: int = 5, warmup: int = 1) -> list[float]:
    """Seconds of ``repetitions`` runs after a warm-up, for measurements that have no peer."""
    return [timed(work) for _ in range(warmup + repetitions)][warmup:]


def absolute(name: str, setting: str, unit: str, values: Sequence[float], target: str = "", *, note: str = "") -> Row:
    """A row without a peer: median and range of ``values``, already in ``unit``; the target bounds the median."""
    median = statistics.median(values)
    return Row(
        name, setting, unit, median, low=min(values), high=max(values), target=target, met=meets(median, target),
        repetitions=len(values), note=note,
    )  # fmt: skip


def meets(value: float, target: str) -> bool | None:
    """Whether ``value`` satisfies ">= x" or "<= x"; None without a target."""
    if not target:
        return None
    sign, bound = target.split()[:2]
    return value >= float(bound) if sign == ">=" else value <= float(bound)


def machine(program: str = "python scripts/benchmark.py") -> dict[str, str]:
    """What a row needs besides its figures, by column: where, with what and by which command it was measured.

    Every row carries these itself, so a later run that measures other rows cannot take them away.

    Args:
        program: what was started; the options of this process are put behind it.
    """
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    software = {"python": platform.python_version()} | versions(PACKAGES)
    return {
        "device": device(),
        "cores": str(os.cpu_count()),
        "versions": ", ".join(f"{name} {version}" for name, version in software.items()),
        "commit": commit,
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join([program, *sys.argv[1:]]),
    }


def resident_bytes(kind: str) -> int:
    """Memory of this process now ("VmRSS") or at its highest ("VmHWM").

    ``ru_maxrss`` would count what a parent held before the start.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        raise SystemExit("memory is read from /proc/self/status, which this system lacks; run on Linux")
    line = next(each for each in status.read_text().splitlines() if each.startswith(kind))
    return 1024 * int(line.split()[1])


def report(
    name: str,
    rows: Iterable[Row],
    folder: Path | None = None,
    program: str = "python scripts/benchmark.py",
    keeps: bool = False,
) -> list[Row]:
    """Print the table of ``rows`` as they come and write ``<name>.csv`` at the end, if there are any.

    Args:
        folder: of the files, ``docs/benchmarks`` by default.
        program: what is run to measure anew.
        keeps: whether rows of an earlier run stay unless one of the same name was measured now.
    """
    folder, facts = folder or RESULTS, machine(program)
    print(f"{name}: {facts['device']}, {facts['cores']} cores, {facts['versions']}\n")
    done = []
    for row in rows:
        done.append(row)
        print(line(row), flush=True)
    if not done:
        print("nothing was measured, nothing is written")
        return done
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.csv"
    earlier = earlier_rows(path, {row.name for row in done}) if keeps else []
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*Row.__dataclass_fields__, *facts])
        writer.writeheader()
        writer.writerows(earlier)
        writer.writerows({key: rounded(value) for key, value in asdict(row).items()} | facts for row in done)
    print(f"\nwritten: {folder.relative_to(ROOT)}/{name}.csv")
    return done


def earlier_rows(path: Path, names: Container[str]) -> list[dict[str, str]]:
    """Rows of a CSV, each with its own machine, versions and command, whose names are not among ``names``."""
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["name"] not in names]


def rounded(value: Any) -> Any:
    """Floats with four significant digits; NaN becomes an empty cell."""
    if isinstance(value, float):
        return None if math.isnan(value) else float(f"{value:.4g}")
    return value


def line(row: Row) -> str:
    """A row for the terminal."""
    verdict = {None: "", True: "met", False: "NOT MET"}[row.met]
    head = f"{row.name:28s} {row.ours:10.4g} {row.unit:18s}"
    if row.peer_name:
        head += f" peer {row.peer:10.4g} ({row.peer_name})  ratio {row.ratio:6.2f} [{row.low:.2f}, {row.high:.2f}]"
    else:
        head += f" [{row.low:.4g}, {row.high:.4g}]" if row.repetitions > 1 else ""
    return f"{head}  {row.target} {verdict}  threads {row.threads}\n    {row.setting}" + (
        f"\n    {row.note}" if row.note else ""
    )
