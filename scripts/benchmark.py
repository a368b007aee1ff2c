"""Benchmarks against published implementations: `python scripts/benchmark.py COMMAND`, figures in docs/benchmarks/.

`all` runs every command in a process of its own, `summary` prints what is written as one Markdown table. The peers come
with `pip install "rltransformers[bench]"`.
"""

import argparse
import csv
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltransformers.core.errors import ConfigError, did_you_mean

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "benchmarks"
COLUMNS = ("row", "setting", "ours", "baseline", "ratio [range]", "target", "met")
LEGEND = (
    "Medians of 5 repetitions and the range of the ratios; baseline: a published implementation in the same process, "
    "or what else its brackets name; target: the ratio that is wanted, or our own figure where nothing is compared; "
    "met: yes or no."
)
VERDICTS = {"True": "yes", "False": "**no**", "": ""}


@dataclass(frozen=True)
class Command:
    """One benchmark: a function of a module in benchmarks that yields rows as they are measured."""

    module: str
    function: str
    help: str
    threads: int = 1
    laws: tuple[str, ...] = ()  # presets whose laws have to be green; attention commands check each variant themselves


GTRXL, DECISION_TRANSFORMER = ("preset:gtrxl",), ("preset:decision_transformer",)
COMMANDS = {
    "gtrxl-loop": Command(
        "loops", "gtrxl_loop", "GTrXL: collecting and learning, against RecurrentPPO and two transformers", laws=GTRXL
    ),
    "gtrxl-acting": Command(
        "online", "gtrxl_acting", "GTrXL: one step of all environments with cached memory", laws=GTRXL
    ),
    "gtrxl-update": Command("online", "gtrxl_update", "GTrXL: segment updates, against one call per step", laws=GTRXL),
    "tensors-loop": Command("tensors", "tensors_loop", "1,024 environments in tensors, against the same in numpy"),
    "startup": Command("startup", "startup", "seconds until the package is imported and the command line answers"),
    "time-to-learn": Command(
        "learning",
        "time_to_learn",
        "seconds to learn eight small tasks, beside recurrent_ppo and transformers of others",
        laws=GTRXL,
    ),
    "memory": Command("online", "memory", "GTrXL: bytes of memory per environment and of stored rollouts"),
    "dt-update": Command(
        "offline",
        "dt_update",
        "Decision Transformer: training step, against transformers",
        threads=2,
        laws=DECISION_TRANSFORMER,
    ),
    "dt-sampling": Command("offline", "dt_sampling", "Decision Transformer: batches from a million steps"),
    "dt-acting": Command(
        "offline",
        "dt_acting",
        "Decision Transformer: playing episodes, against transformers",
        laws=DECISION_TRANSFORMER,
    ),
    "csv-load": Command("offline", "csv_load", "reading a million rows of CSV beside pandas: seconds and memory"),
    "dt-load": Command("offline", "dt_load", "reading a million steps from D4RL and Minari: seconds and memory"),
    "dt-returns": Command("returns", "dt_returns", "Decision Transformers of others: returns on a recording of ours"),
    "recorder": Command("offline", "recorder", "steps per second of recording CartPole into Minari"),
    "windowed": Command("attention", "windowed", "windowed attention, against dense kernels and x-transformers"),
    "linear": Command("attention", "linear", "linear attention: growth with the length of the segment"),
    "catalogue": Command("catalogue", "catalogue", "cost of every mechanism by length, against its declared growth"),
    "acting-position": Command("catalogue", "acting", "every mixer: a step late in an episode against one early in it"),
    "encoders": Command("encoders", "encoders", "cost of encoders of an observation by its elements, the same way"),
}
CHOOSES = ("catalogue", "acting-position", "time-to-learn", "dt-returns")
"""Commands that can measure some of their entries."""
WITH_SOURCES = ("gtrxl-loop", "time-to-learn")
"""Commands with peers that are read from a folder."""
ENTRIES = {
    "catalogue": "time, FLOPs and kept bytes grow as declared, T to 8192",
    "acting-position": "a step at position 4,096 takes at most 1.1 times as long as at 32",
    "encoders": "time, FLOPs and kept bytes grow as declared, N to 8192",
}
"""Commands whose rows are entries with one target for all, and that target."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 unless something failed. A missed target is a result, not a failure."""
    chosen = parser().parse_args(arguments)
    if chosen.command == "summary":
        print("\n".join(summary(RESULTS)))
        return 0
    if chosen.command == "all":
        return run_all(chosen.repetitions, chosen.threads)
    if getattr(chosen, "sources", None) is not None:
        os.environ["CONFORMANCE_SOURCES"] = str(chosen.sources.resolve())
    return run(chosen.command, chosen.repetitions, chosen.threads, getattr(chosen, "only", None))


def parser() -> argparse.ArgumentParser:
    """One sub-command per benchmark."""
    outer = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = outer.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        one = commands.add_parser(name, help=command.help, description=command.help)
        add_options(one, str(command.threads))
        if name in CHOOSES:
            one.add_argument(
                "--only",
                nargs="+",
                metavar="ENTRY",
                help="measure these, such as mixer:gla, cue_recall or d3rlpy, and keep the figures of others; "
                "catalogue: missing, for all that have none",
            )
        if name in WITH_SOURCES:
            one.add_argument(
                "--sources",
                type=Path,
                metavar="FOLDER",
                help="folder of the transformers of others; without it, a line says how to get each",
            )
    add_options(commands.add_parser("all", help="every command above, each in its own process"), "as per command")
    commands.add_parser("summary", help="Markdown table of the figures in docs/benchmarks")
    return outer


def add_options(command: argparse.ArgumentParser, threads: str) -> None:
    """Repetitions and threads."""
    command.add_argument("--repetitions", type=positive, default=5, help="of every measurement (default: %(default)s)")
    command.add_argument("--threads", type=positive, help=f"threads of torch (default: {threads})")


def positive(text: str) -> int:
    """A whole number of at least 1.

    Raises:
        ArgumentTypeError: for anything else.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def run(name: str, repetitions: int, threads: int | None, only: Sequence[str] | None = None) -> int:
    """Measure one command, print its rows and write its files. The threads are set before torch and numpy start."""
    command = COMMANDS[name]
    threads = threads or command.threads
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(threads)
    sys.path.insert(0, str(ROOT))
    import torch

    torch.set_num_threads(threads)
    from benchmarks.harness import Row, report
    from benchmarks.laws import require_green

    require_green(command.laws)

    module = importlib.import_module(f"benchmarks.{command.module}")
    measure: Callable[..., Iterator[Row]] = getattr(module, command.function)
    chosen = {} if only is None else {"only": only}
    report(name, measure(repetitions=repetitions, **chosen), keeps=bool(chosen))
    return 0


def run_all(repetitions: int, threads: int | None) -> int:
    """Every command in a new process, so that none finds the memory and the threads of another; 1 if one failed."""
    options = ["--repetitions", str(repetitions), *([] if threads is None else ["--threads", str(threads)])]
    failed = []
    for name in COMMANDS:
        if subprocess.run([sys.executable, __file__, name, *options], cwd=ROOT, check=False).returncode:
            failed.append(name)
        print(flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}; the messages stand above", file=sys.stderr)
    return 1 if failed else 0


def summary(folder: Path) -> list[str]:
    """Lines of a Markdown table of what the commands wrote to ``folder``, in the order of the commands."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    above = ""
    for row in measured(folder, COMMANDS):
        name, setting, *cells = table_cells(row)
        lines.append(f"| {' | '.join([name, 'as above' if setting == above else setting, *cells])} |")
        above = setting
    if len(lines) == 2:
        raise SystemExit(f"no figures in {folder}; run python scripts/benchmark.py all")
    return lines


def targets(folder: Path, chosen: Sequence[str] | None = None) -> list[str]:
    """Lines of a short Markdown table: the rows that have a target, without their settings.

    Entries with one target for all are counted in one row. ``chosen`` names the rows to show, in this order.

    Raises:
        ConfigError: for a name that no row with a target has.
    """
    lines: dict[str, list[str]] = {}
    for row in measured(folder, [name for name in COMMANDS if name not in ENTRIES]):
        if row["target"]:
            cells = table_cells(row)
            lines.setdefault(row["name"], []).append(f"| {' | '.join([cells[0], *cells[2:]])} |")
    for name, target in ENTRIES.items():
        if entries := list(measured(folder, [name])):
            grown = sum(row["met"] == "True" for row in entries)
            verdict = "yes" if grown == len(entries) else "**no**"
            lines[name] = [f"| {name} | {grown} of {len(entries)} entries | | | {target} | {verdict} |"]
    for name in chosen or ():
        if name not in lines:
            raise ConfigError(f"no row {name!r} with a target in {folder}; {did_you_mean(name, lines)}")
    head = ["| row | ours | baseline | ratio [range] | target | met |", "|---|---|---|---|---|---|"]
    return [*head, *(line for name in (lines if chosen is None else chosen) for line in lines[name])]


def measured(folder: Path, commands: Iterable[str]) -> Iterator[dict[str, str]]:
    """Rows of the CSV files of these commands."""
    for name in commands:
        path = folder / f"{name}.csv"
        if path.is_file():
            with path.open(newline="") as file:
                yield from csv.DictReader(file)


def table_cells(row: Mapping[str, Any]) -> list[str]:
    """One measurement. Without a peer the range is that of the value itself."""
    ours, peer, ratio, low, high = (short(row[name]) for name in ("ours", "peer", "ratio", "low", "high"))
    spread = f" [{low}, {high}]" if row["low"] and row["low"] != row["high"] else ""
    compared = bool(row["peer_name"])
    cells = (
        row["name"],
        "; ".join(filter(None, (row["setting"], row["note"]))),
        f"{ours} {row['unit']}{'' if compared else spread}",
        f"{peer} ({row['peer_name']})" if compared else "",
        f"{ratio}{spread}" if compared else "",
        row["target"],
        VERDICTS[row["met"]],
    )
    return [cell.replace("|", "/") for cell in cells]


def short(number: str) -> str:
    """Three digits, and no exponent for large numbers."""
    if not number:
        return ""
    value = float(number)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
