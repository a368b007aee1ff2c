"""How long systems take to learn the tasks of ``tasks.py``: ours, an LSTM and transformers of others."""

import math
import multiprocessing
import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import lru_cache

import torch

from benchmarks import returns
from benchmarks.harness import Pair, Row, absolute
from benchmarks.peers import PROGRAMS
from benchmarks.tasks import LSTM, NAMES, OURS, OURS_OFFLINE, TASKS, Clock, Learned
from rltransformers.core.errors import ConfigError, did_you_mean

ENOUGH_MISSES = 2
"""A system that was given up this often gets no further seeds of a task."""


def time_to_learn(*, repetitions: int = 5, only: Sequence[str] | None = None) -> Iterator[Row]:
    """Seconds from the first step on, seed by seed; a row per task and system beside ours.

    Raises:
        ConfigError: for an unknown task.
    """
    for name in only or ():
        if name not in TASKS:
            raise ConfigError(f"unknown task {name!r}; {did_you_mean(name, TASKS)}")
    for program in PROGRAMS.values():
        if not program.source.exists:
            print(f"{program.name}: not run; {program.source.how}")
    for system, peer in returns.PEERS.items():
        if not peer.installed:
            print(f"{NAMES[system]}: not run; pip install {' '.join(peer.packages)}")
    with ExitStack() as stack:
        spawned = multiprocessing.get_context("spawn")
        processes = {
            system: stack.enter_context(ProcessPoolExecutor(1, mp_context=spawned))
            for system in (OURS, LSTM, *PROGRAMS, OURS_OFFLINE, *returns.PEERS)
        }
        for name in only or TASKS:
            if missing := TASKS[name].missing:
                print(f"{TASKS[name].title}: not run; {missing}")
            else:
                yield from rows_of(name, repetitions, processes)


def rows_of(name: str, repetitions: int, processes: Mapping[str, ProcessPoolExecutor]) -> Iterator[Row]:
    """Runs of all systems on a task, in turn, each system in its process."""
    task = TASKS[name]
    runs: dict[str, list[Learned]] = {system: [] for system in task.systems}
    for seed in range(repetitions):
        for system, done in runs.items():
            if sum(not run.reached for run in done) < ENOUGH_MISSES:
                done.append(processes[system].submit(learned, system, name, seed).result())
                print(f"  {task.title}, {system}, seed {seed}: {done[-1]}", flush=True)
    mine = runs.pop(task.systems[0])
    for system, theirs in runs.items():
        count = min(len(mine), len(theirs))
        pair = Pair([run.seconds for run in mine[:count]], [run.seconds for run in theirs[:count]])
        note = f"ours {note_of(mine, task.unit)}; {NAMES[system]} {note_of(theirs, task.unit)}"
        yield pair.row(f"time to learn: {task.title}", task.setting, "s", NAMES[system], "", note=note)
    slowest = max(run.seconds if run.reached else math.inf for run in mine)
    target = "" if task.seconds is None else f"<= {task.seconds:g}"
    title = f"time to learn: {task.title}, slowest seed"
    if target or slowest < math.inf:
        yield absolute(title, task.setting, "s", [slowest], target, note=note_of(mine, task.unit))


def note_of(runs: Sequence[Learned], unit: str = "steps") -> str:
    """How many runs got there, and after how many steps; how many steps the others had."""
    steps = [run.steps for run in runs if run.reached]
    text = f"{len(steps)} of {len(runs)}"
    if steps:
        text += f" after {min(steps):,} to {max(steps):,} {unit} (median {statistics.median(steps):,.0f})"
    missed = [run.steps for run in runs if not run.reached]
    return text + (f", not within {min(missed):,} {unit}" if missed else "")


def learned(system: str, name: str, seed: int) -> Learned:
    """Train until an evaluation reaches the aim, or until the run is given up; first uses are slow and do not count."""
    torch.set_num_threads(1)
    warm_up(system, name)
    clock = Clock(TASKS[name], TASKS[name].limit)
    TASKS[name].train(system, seed, clock)
    return clock.run


@lru_cache
def warm_up(system: str, name: str) -> None:
    """One update, once in a process."""
    TASKS[name].train(system, 0, Clock(TASKS[name], 0.0))
