"""One config with several seeds: a process and a run folder for each, and what the runs have in common."""

import json
import statistics
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rltransformers.core.errors import ConfigError
from rltransformers.core.signals import Stopped, signals_to

TRAIN = (sys.executable, "-m", "rltransformers", "train")
Run = dict[str, Any]
"""Seed, run folder ("run") and final evaluation ("results", one per target return) as JSON values."""


class Processes:
    """Runs of seeds that train now; a signal reaches all of them once, and none begins behind it."""

    def __init__(self) -> None:
        self.signum: int | None = None
        self._failed = False
        self._running: list[subprocess.Popen[str]] = []
        self._lock = threading.Lock()

    def stop(self, signum: int) -> None:
        """Pass a signal on; each run ends behind its update and a checkpoint."""
        self.signum = signum
        for process in list(self._running):
            process.send_signal(signum)

    def run(self, words: Sequence[str], label: str) -> tuple[int, str] | None:
        """Exit code and standard output of one command, None if it did not begin; ``label`` precedes its messages."""
        with self._lock:
            if self.signum is not None or self._failed:
                return None
            # A session of its own: the terminal would send it a second Ctrl-C, which ends a run without a checkpoint.
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if label else None,
                text=True,
                start_new_session=True,
            )
            self._running.append(process)
        if self.signum is not None:  # it came while the process began
            process.send_signal(self.signum)
        with process:
            messages = threading.Thread(target=_relay, args=(process.stderr, label))
            messages.start()
            assert process.stdout is not None
            output = process.stdout.read()
            messages.join()
        self._running.remove(process)
        self._failed = self._failed or process.returncode != 0
        return process.returncode, output


def _relay(stream: Any, label: str) -> None:
    for line in stream or ():
        print(f"{label}{line}", end="", file=sys.stderr, flush=True)


def train_seeds(source: Sequence[str], name: str, seeds: Sequence[int], jobs: int) -> list[Run]:
    """Train with every seed, ``jobs`` at a time, each in the run folder ``name``-seed<seed>.

    Args:
        source: words of ``rltransformers train`` that say what is trained.

    Raises:
        ConfigError: when a run fails; those that train then come to their end, no other begins.
        Stopped: when a signal ends the runs.
    """
    processes = Processes()

    def one(seed: int) -> tuple[int, str] | None:
        label = f"seed {seed}: " if jobs > 1 else ""
        return processes.run([*TRAIN, *source, f"--seed={seed}", f"--name={name}-seed{seed}", "--json"], label)

    with signals_to(processes.stop), ThreadPoolExecutor(jobs) as pool:
        ended = list(pool.map(one, seeds))
    if processes.signum is not None:
        raise Stopped(processes.signum)
    runs = [{"seed": seed} | json.loads(end[1]) for seed, end in zip(seeds, ended, strict=True) if end and not end[0]]
    failed = [f"seed {seed} (exit code {end[0]})" for seed, end in zip(seeds, ended, strict=True) if end and end[0]]
    if failed:
        done = ", ".join(run["run"] for run in runs)
        raise ConfigError(f"{', '.join(failed)} failed, see above; runs that ended well: {done or 'none'}")
    return runs


def seeds_summary(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Mean and spread over seeds of the mean return of a run, one entry per target return.

    ``return_std`` is the standard deviation between seeds (of a sample, n - 1), None for one seed.
    """
    summary = []
    for results in zip(*(run["results"] for run in runs), strict=True):
        summary.append(
            {"target_return": results[0].get("target_return"), "seeds": len(runs)}
            | _spread("return", [statistics.fmean(result["returns"]) for result in results])
        )
        if all(result.get("successes") for result in results):
            summary[-1] |= _spread("success", [statistics.fmean(result["successes"]) for result in results])
    return summary


def _spread(name: str, values: Sequence[float]) -> dict[str, float | None]:
    return {
        f"{name}_mean": statistics.fmean(values),
        f"{name}_std": statistics.stdev(values) if len(values) > 1 else None,
        f"{name}_least": min(values),
        f"{name}_most": max(values),
    }


def print_seeds(runs: Sequence[Run]) -> None:
    """A line per run, and one with mean and spread over seeds per target return."""
    print(f"{'seed':>6}  {'return, mean':>24}  run folder")
    for run in runs:
        returns = ", ".join(f"{statistics.fmean(result['returns']):.3f}" for result in run["results"])
        print(f"{run['seed']:>6}  {returns:>24}  {run['run']}")
    print()
    for each in seeds_summary(runs):
        target = "" if each["target_return"] is None else f" asked for {each['target_return']:g}"
        print(f"{len(runs)} seeds{target}: {_line('return', each)}")
        if "success_mean" in each:
            print(f"{len(runs)} seeds{target}: {_line('success rate', each, 'success')}")


def _line(label: str, values: Mapping[str, Any], name: str = "return") -> str:
    deviation = values[f"{name}_std"]
    spread = "" if deviation is None else f" ± {deviation:.3f} (standard deviation between seeds)"
    least, most = values[f"{name}_least"], values[f"{name}_most"]
    return f"{label} {values[f'{name}_mean']:.3f}{spread}, from {least:.3f} to {most:.3f}"
