"""Kills training runs at random moments, resumes them, and compares what they leave with runs that were left alone.

Four small runs of the command line: online in a task that can tell where it stands, online in one that cannot
(``train.restart_every``), from a replay, offline. Equal have to be: the final checkpoint bit for bit, every column of
progress.csv but the clock (``time/``), every scalar of TensorBoard, the evaluations and the best weights. A run that
ended before all of its kills is repeated with twice the updates; runs that differ are left on the disk.

    python tests/kills/kill_runs.py --kills 20
"""

import argparse
import csv
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rltransformers.cli.main import main as cli
from rltransformers.core.checkpoint import load_checkpoint
from rltransformers.core.modules import safe_path
from rltransformers.training.runs.run_folder import RunFolder

BACKBONE = {"width": 8, "layers": 1, "heads": 2}
ONLINE: dict[str, Any] = {
    "agent": "gtrxl_ppo",
    "environment": {
        "id": "rltransformers/CueRecall-v0",
        "num_envs": 4,
        "kwargs": {"delay": 6, "shortest_delay": 1},
        "normalize_reward": True,
    },
    "backbone": {"preset": "gtrxl", "memory": 5, **BACKBONE},
    "algorithm": {"n_steps": 8, "n_epochs": 2, "memory_refresh": "epoch", "device": "cpu"},
    "train": {},
    "evaluation": {"episodes": 10, "deterministic": False},
}
REPLAY: dict[str, Any] = ONLINE | {
    "agent": "gtrxl_sac",
    "policy": {"head_width": 16},
    "algorithm": {
        "learning_starts": 64, "train_freq": 8, "segment_length": 4, "batch_size": 4, "buffer_size": 400,
        "device": "cpu",
    },
}  # fmt: skip
OFFLINE: dict[str, Any] = {
    "agent": "decision_transformer",
    "environment": {"id": "rltransformers/KeyToDoor-v0", "num_envs": 4},
    "dataset": {"collect": {"episodes": 30}},
    "backbone": {"preset": "decision_transformer", **BACKBONE},
    "algorithm": {"context_length": 6, "batch_size": 8, "device": "cpu"},
    "train": {},
    "evaluation": {"episodes": 5, "target_returns": [0, 1], "deterministic": False},
}
CARTPOLE = {"id": "CartPole-v1", "num_envs": 4, "normalize_observation": True}
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP, signal.SIGKILL, signal.SIGINT)
EXITS = tuple(code for number in SIGNALS for code in (-number, 128 + number))
CONTEXT = multiprocessing.get_context("forkserver")  # imports once; every run is a process of its own all the same
# What torch imports when the first optimizer is made, and with it SciPy, takes longer than these runs train.
PRELOAD = ["rltransformers.cli.runs", "torch._dynamo", "scipy.stats"]
CONTEXT.set_forkserver_preload(PRELOAD)


def configs(updates: int) -> dict[str, dict[str, Any]]:
    """The runs by name, of about ``updates`` updates each, with an evaluation every ``updates / 8`` of them."""
    steps, every = 32 * updates, 4 * updates
    online = {"total_timesteps": steps}
    evaluated = ONLINE["evaluation"] | {"every": every}
    return {
        "online": ONLINE | {"train": online, "evaluation": evaluated},
        "online, restarts": ONLINE
        | {"environment": CARTPOLE, "train": online | {"restart_every": 160}, "evaluation": evaluated},
        "replay": REPLAY | {"train": online, "evaluation": evaluated},
        "offline": OFFLINE
        | {"train": {"gradient_steps": updates}, "evaluation": OFFLINE["evaluation"] | {"every": updates // 8}},
    }


@safe_path()
def main(words: Sequence[str] | None = None) -> int:
    """Run, print the table, return 0 when every run equals the one that was left alone."""
    os.environ["OMP_NUM_THREADS"] = "1"
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=20, help="kills of each run (default: 20)")
    parser.add_argument(
        "--updates", type=int, default=400, help="length of each run; doubled until all kills land (default: 400)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: 0)")
    parser.add_argument("--only", choices=list(configs(8)), action="append", help="these runs only; repeatable")
    arguments = parser.parse_args(words)
    chance = random.Random(arguments.seed)
    print(f"{'run':<18}{'updates':>8}{'kills':>6}{'furthest step':>15}  {'compared':<52}verdict", flush=True)
    root, failed = Path(tempfile.mkdtemp(prefix="kill_runs_")), False
    for name in configs(arguments.updates):
        if arguments.only and name not in arguments.only:
            continue
        updates = arguments.updates
        while True:
            path = root / f"{name.replace(', ', '-')}-{updates}.yaml"
            path.write_text(yaml.safe_dump(configs(updates)[name] | {"output": str(root)}))
            seconds = finish(path, f"{path.stem}-whole")
            killed = root / f"{path.stem}-killed"
            codes, furthest = kill_often(path, killed, arguments.kills, seconds, chance)
            compared, differing = compare(root / f"{path.stem}-whole", killed)
            failed |= bool(differing)
            verdict = f"differs: {differing}" if differing else "equal"
            shortage = f", too few kills: again with {2 * updates} updates" if len(codes) < arguments.kills else ""
            print(f"{name:<18}{updates:>8}{len(codes):>6}{furthest:>15}  {compared:<52}{verdict}{shortage}", flush=True)
            if not shortage:
                break
            updates *= 2
    if failed:
        print(f"the runs are left in {root}")
    else:
        shutil.rmtree(root)
    return int(failed)


def finish(config: Path, name: str) -> float:
    """Run a config to its end; returns the seconds it trained."""
    process = started("train", str(config), "--name", name)
    wait_for_training(process, config.parent / name)
    began = time.monotonic()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{config.stem} did not finish ({process.exitcode})")
    return time.monotonic() - began


def kill_often(config: Path, folder: Path, kills: int, seconds: float, chance: random.Random) -> tuple[list[int], int]:
    """Exit codes of the processes that were killed on the way to the end of the run in ``folder``, and their last step.

    Each is killed at a moment between the start of training and a share of its whole time, so that most of the
    ``kills`` fall before the end.
    """
    codes, furthest = list[int](), 0
    while True:
        begun = (folder / "config.yaml").is_file()
        words = ("train", "--resume", str(folder)) if begun else ("train", str(config), "--name", folder.name)
        process = started(*words)
        if len(codes) < kills:
            wait_for_training(process, folder)
            time.sleep(chance.uniform(0, 2 * seconds / (kills + 1)))
            if process.is_alive():
                os.kill(process.pid or 0, SIGNALS[len(codes) % len(SIGNALS)])
        process.join()
        if process.exitcode == 0:
            return codes, furthest
        if process.exitcode not in EXITS:
            raise SystemExit(f"{folder} ended in an error ({process.exitcode}) after {len(codes)} kills")
        codes.append(process.exitcode)
        rows = rows_of(folder)
        furthest = max(furthest, int(rows[-1]["step"]) if rows else 0)


def started(*words: str) -> ForkServerProcess:
    """A command of rltransformers in a process of its own; silent."""
    process = CONTEXT.Process(target=command, args=(words,))
    process.start()
    return process


def command(words: Sequence[str]) -> None:
    """Result of ``rltransformers`` with these words."""
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    sys.exit(cli(words))


def wait_for_training(process: ForkServerProcess, folder: Path) -> None:
    """Return when the process has opened its log, or has ended."""
    name = f".{process.pid}."
    while process.is_alive() and not any(name in path.name for path in folder.glob("events.out.tfevents.*")):
        time.sleep(0.01)


def compare(whole: Path, killed: Path) -> tuple[str, str]:
    """Comparisons with counts, and those that differ."""
    one, other = contents(whole), contents(killed)
    compared = f"{len(one['weights'])} tensors, {len(one['rows'])} rows, {len(one['scalars'])} scalars"
    compared += f", {len(one['evaluations'])} evaluations"
    differing = [name for name in one if not equal(one[name], other[name])]
    if "rows" in differing:
        differing.append(first_difference(one["rows"], other["rows"]))
    return compared, ", ".join(differing)


def first_difference(one: Sequence[dict[str, str]], other: Sequence[dict[str, str]]) -> str:
    """The first row that differs, and in what: (value of the whole run, value of the killed one) by column."""
    for row, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            names = [name for name in left | right if left.get(name) != right.get(name)]
            return f"row {row} of {len(one)}: { {name: (left.get(name), right.get(name)) for name in names} }"
        if list(left) != list(right):
            return f"row {row} of {len(one)}, the order of its columns: {list(left)} and {list(right)}"
    return f"{len(one)} rows and {len(other)}"


def contents(folder: Path) -> dict[str, Any]:
    """Contents that have to be equal: final and best weights (and all of the final checkpoint but the clock), logs."""
    last = load_checkpoint(folder / "last.zip").tensors
    episodes = [{key: value for key, value in each.items() if key != "t"} for each in last.pop("episodes", [])]
    return {
        "weights": last["policy"],
        "checkpoint": last,
        "episodes": episodes,
        "best": load_checkpoint(folder / "best.zip").tensors["policy"],
        "rows": rows_of(folder),
        "scalars": scalars_of(folder),
        "evaluations": RunFolder(folder).read_evaluations(),
        "final": (folder / "evaluation.json").read_text(),
    }


def rows_of(folder: Path) -> list[dict[str, str]]:
    """The metrics of a run, row by row, without the clock."""
    path = folder / "progress.csv"
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return [
            {name: value for name, value in row.items() if value and not name.startswith("time/")}
            for row in csv.DictReader(file)
        ]


def scalars_of(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, value) by tag as TensorBoard reads them, without the clock."""
    accumulator = EventAccumulator(str(folder), {"scalars": 0})
    accumulator.Reload()
    return {
        tag: [(event.step, event.value) for event in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
        if not tag.startswith("time/")
    }


def equal(one: Any, other: Any) -> bool:
    """Bit for bit, nan included."""
    if isinstance(one, torch.Tensor):
        return (
            one.dtype == other.dtype and one.shape == other.shape and one.numpy().tobytes() == other.numpy().tobytes()
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other) or (one != one and other != other)


if __name__ == "__main__":
    sys.exit(main())
