"""The main job end to end: both agents beside their baselines on tasks that need them, then one table.

Four runs of the command line, two at a time, one thread each: a GTrXL and its memoryless twin on CueRecall, a Decision
Transformer and behavior cloning on 1,000 recorded random walks of KeyToDoor.
"""

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rltransformers.core.files import numbered
from rltransformers.training.evaluation import read_results


@dataclass(frozen=True)
class Run:
    """One row of the table: a packaged config with overrides, and what its success rate has to satisfy."""

    name: str
    label: str
    config: str
    overrides: tuple[str, ...]
    least: float
    most: float
    expectation: str


CHANCE = "chance is 0.50"
EPISODES = ("--evaluation.episodes", "200")  # at chance the success rate of 200 episodes is 0.50 +- 0.035
SCALED = ("--algorithm.scale_rewards", "true")  # as agents do by default; the config is one of published results
RUNS = (
    Run("gtrxl", "GTrXL", "gtrxl_cue_recall", (*SCALED, *EPISODES), 0.95, 1.0, "at least 0.95"),
    Run("dt", "Decision Transformer", "dt_key_to_door", (), 0.75, 1.0, "at least 0.75"),
    Run(
        "memoryless",
        "the same without memory",
        "gtrxl_cue_recall",
        ("--backbone.memory", "0", *SCALED, *EPISODES),
        0.4,
        0.6,
        CHANCE,
    ),
    Run(
        "bc",
        "behavior cloning",
        "dt_key_to_door",
        ("--algorithm.mode", "bc", "--evaluation.target_returns", "[]"),
        0.0,
        0.1,
        "at most 0.10; random walks 0.03",
    ),
)
TASKS = {"gtrxl_cue_recall": "CueRecall, delay 16", "dt_key_to_door": "KeyToDoor, 1,000 random walks"}


def main() -> int:
    """Train, print the table, return 0 when every row is as expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="runs/demo", help="folder for the four run folders (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of every run (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each (default: %(default)s)")
    arguments = parser.parse_args()
    root = new_folder(Path(arguments.output))
    print(
        f"Four trainings, {arguments.jobs} at a time; about 4 minutes on 2 cores. Watch: tensorboard --logdir {root}\n"
    )
    with ThreadPoolExecutor(arguments.jobs) as pool:
        minutes = list(pool.map(lambda run: train(run, root, arguments.seed), RUNS))
    return report(root, minutes)


def new_folder(path: Path) -> Path:
    """``path``, or with a number behind it when an earlier demo is there."""
    chosen = next(each for each in map(path.with_name, numbered(path.name)) if not each.exists())
    chosen.mkdir(parents=True)
    return chosen


def train(run: Run, root: Path, seed: int) -> float:
    """Run one command, its output in a log file; returns the minutes it took."""
    command = [
        sys.executable, "-P", "-m", "rltransformers.cli.main", "train", run.config, "--name", run.name,
        "--output", str(root), "--seed", str(seed), *run.overrides,
    ]  # fmt: skip
    log = root / f"{run.name}.log"
    began = time.monotonic()
    with log.open("w") as output:
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | threads, check=False)
    minutes = (time.monotonic() - began) / 60
    if done.returncode:
        raise SystemExit(
            f"{run.label} failed; the last lines of {log}:\n" + "\n".join(log.read_text().splitlines()[-15:])
        )
    print(f"  done after {minutes:4.1f} min: {run.label} on {TASKS[run.config]}", flush=True)
    return minutes


def report(root: Path, minutes: list[float]) -> int:
    """Print table and paths."""
    print(f"\n{'task':31s} {'agent':24s} {'success':>7s} {'episodes':>8s} {'minutes':>7s}  expected")
    good = True
    for run, spent in sorted(zip(RUNS, minutes, strict=True), key=lambda pair: pair[0].config, reverse=True):
        summary = read_results(root / run.name / "evaluation.json")[0].summary()
        success = summary["success_rate"]
        met = run.least <= success <= run.most
        good &= met
        mark = "" if met else "   NOT MET"
        print(
            f"{TASKS[run.config]:31s} {run.label:24s} {success:7.2f} {summary['episodes']:8d} {spent:7.1f}  "
            f"{run.expectation}{mark}"
        )
    print(f"\nTensorBoard      tensorboard --logdir {root}")
    for what, name in (("evaluations", "evaluation.json"), ("learning curves", "learning_curve.png")):
        print(f"{what:16s} " + "  ".join(str(root / run.name / name) for run in RUNS))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
