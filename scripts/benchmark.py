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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "benchmarks"
COLUMNS = ("row", "setting", "ours", "peer", "ratio [range]", "target", "met")
VERDICTS = {"True": "yes", "False": "**no**", "": ""}


@dataclass(frozen=True)
class Command:
    """One benchmark: a function of a module in scripts/benchmarks that yields rows as they are measured."""

    module: str
    function: str
    help: str
    threads: int = 1


COMMANDS = {
    "gtrxl-loop": Command("online", "gtrxl_loop", "GTrXL: collecting and learning, against RecurrentPPO"),
    "gtrxl-acting": Command("online", "gtrxl_acting", "GTrXL: one step of all environments with cached memory"),
    "gtrxl-update": Command("online", "gtrxl_update", "GTrXL: segment updates, against one call per step"),
    "memory": Command("online", "memory", "GTrXL: bytes of memory per environment and of stored rollouts"),
    "dt-update": Command(
        "offline", "dt_update", "Decision Transformer: training step, against transformers", threads=2
    ),
    "dt-sampling": Command("offline", "dt_sampling", "Decision Transformer: batches from a million steps"),
    "dt-acting": Command("offline", "dt_acting", "Decision Transformer: playing episodes, against transformers"),
    "dt-load": Command("offline", "dt_load", "reading a million steps from D4RL and Minari: seconds and memory"),
    "recorder": Command("offline", "recorder", "steps per second of recording CartPole into Minari"),
    "windowed": Command("attention", "windowed", "windowed attention, against dense kernels and x-transformers"),
    "linear": Command("attention", "linear", "linear attention: growth with the length of the segment"),
    "catalogue": Command("attention", "catalogue", "cost of every mechanism by length, against its declared growth"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 unless something failed. A missed target is a result, not a failure."""
    chosen = parser().parse_args(arguments)
    if chosen.command == "summary":
        print("\n".join(summary(RESULTS)))
        return 0
    if chosen.command == "all":
        return run_all(chosen.repetitions, chosen.threads)
    return run(chosen.command, chosen.repetitions, chosen.threads)


def parser() -> argparse.ArgumentParser:
    """One sub-command per benchmark."""
    outer = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = outer.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        add_options(commands.add_parser(name, help=command.help, description=command.help), str(command.threads))
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


def run(name: str, repetitions: int, threads: int | None) -> int:
    """Measure one command, print its rows and write its files. The threads are set before torch and numpy start."""
    command = COMMANDS[name]
    threads = threads or command.threads
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(threads)
    sys.path.insert(0, str(ROOT))
    import torch

    torch.set_num_threads(threads)
    from scripts.benchmarks.harness import Row, report

    module = importlib.import_module(f"scripts.benchmarks.{command.module}")
    measure: Callable[..., Iterator[Row]] = getattr(module, command.function)
    report(name, measure(repetitions=repetitions))
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
    lines += [f"| {' | '.join(table_cells(row))} |" for row in measured(folder)]
    if len(lines) == 2:
        raise SystemExit(f"no figures in {folder}; run python scripts/benchmark.py all")
    return lines


def targets(folder: Path) -> list[str]:
    """Lines of a short Markdown table: the rows that have a target, without their settings."""
    lines = ["| what | ours | peer | ratio [range] | aim | reached |", "|---|---|---|---|---|---|"]
    for row in measured(folder):
        if row["target"]:
            cells = table_cells(row)
            lines.append(f"| {' | '.join([cells[0], *cells[2:]])} |")
    return lines


def measured(folder: Path) -> Iterator[dict[str, str]]:
    """Rows of all CSV files, in the order of the commands."""
    for name in COMMANDS:
        path = folder / f"{name}.csv"
        if path.is_file():
            with path.open(newline="") as file:
                yield from csv.DictReader(file)


def table_cells(row: Mapping[str, Any]) -> list[str]:
    """One measurement. Without a peer the range is that of the value itself."""
    spread = f" [{row['low']}, {row['high']}]" if row["low"] and row["low"] != row["high"] else ""
    compared = bool(row["peer_name"])
    cells = (
        row["name"],
        row["setting"],
        f"{row['ours']} {row['unit']}{'' if compared else spread}",
        f"{row['peer']} ({row['peer_name']})" if compared else "",
        f"{row['ratio']}{spread}" if compared else "",
        row["target"],
        VERDICTS[row["met"]],
    )
    return [cell.replace("|", "/") for cell in cells]


if __name__ == "__main__":
    sys.exit(main())
