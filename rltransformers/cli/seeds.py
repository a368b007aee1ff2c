"""One config with several seeds: a process and a run folder for each, and what the runs have in common."""

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rltransformers.cli.engines import Engine, Job, Lines, Order, carry_out
from rltransformers.cli.worker import Report, order_of
from rltransformers.core.errors import ConfigError
from rltransformers.training.runs.experiment import ExperimentConfig

Run = dict[str, Any]  # seed, run folder ("run") and final evaluation ("results", one per target return) as JSON values


RunKey = tuple[str, int]
"""Name of a variant (empty where there is one config) and seed."""


def train_seeds(
    config: ExperimentConfig, name: str, seeds: Sequence[int], engine: Engine, jobs: int | None
) -> list[Run]:
    """Train with every seed, ``jobs`` at a time, each in the run folder ``name``-seed<seed>.

    When a run fails, those that train come to their end, no other begins, and ConfigError is raised.
    """
    orders: dict[RunKey, Callable[[], Order]] = {
        ("", seed): partial(order_of, replace(config, seed=seed), f"{name}-seed{seed}") for seed in seeds
    }
    done, failed = train_runs(orders, engine, jobs)
    runs = [done["", seed] for seed in seeds if ("", seed) in done]
    if failed:
        ended = ", ".join(run["run"] for run in runs)
        raise ConfigError(f"{failures(failed)} failed, see above; runs that ended well: {ended or 'none'}")
    return runs


def train_runs(
    orders: Mapping[RunKey, Callable[[], Order]], engine: Engine, jobs: int | None
) -> tuple[dict[RunKey, Run], dict[RunKey, int]]:
    """Train what is ordered, ``jobs`` at a time; the runs that ended well, and the exit codes of the others.

    What a run says is printed to standard error, and stands in a log beside its folder. When a run fails, no other of
    its variant begins.
    """
    reports: dict[RunKey, Report] = {}
    logs: dict[RunKey, Lines] = {}
    done: dict[RunKey, Run] = {}
    failed: dict[RunKey, int] = {}

    def begin() -> Iterator[tuple[RunKey, Order]]:
        for key, make in orders.items():
            if all(key[0] != variant for variant, _ in failed):
                order = make()
                reports[key], logs[key] = Report(order), Lines(order.log)
                yield key, order

    def relay(key: RunKey, job: Job) -> None:
        for line in logs[key].new():
            print(f"{label(key)}: {line}" if jobs != 1 else line, file=sys.stderr, flush=True)

    def end(key: RunKey, status: int) -> None:
        outcome = reports[key].close()
        if "results" in outcome:
            done[key] = {"seed": key[1]} | outcome
        else:
            failed[key] = status

    if orders:  # an engine may take long to start
        carry_out(engine, begin(), jobs, end, relay)
    return done, failed


def label(key: RunKey) -> str:
    """A run in words."""
    variant, seed = key
    return f"{variant}, seed {seed}" if variant else f"seed {seed}"


def failures(failed: Mapping[RunKey, int]) -> str:
    """Runs that failed with their exit codes, in words."""
    return ", ".join(f"{label(key)} (exit code {status})" for key, status in failed.items())


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
    if all("validation" in run for run in runs):
        losses = [run["validation"]["action_loss"] for run in runs]
        summary.append({"target_return": None, "seeds": len(runs)} | _spread("action_loss", losses))
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
        if not run["results"]:
            returns = f"action loss {run['validation']['action_loss']:.4f}"
        print(f"{run['seed']:>6}  {returns:>24}  {run['run']}")
    print()
    for each in seeds_summary(runs):
        target = "" if each["target_return"] is None else f" asked for {each['target_return']:g}"
        if "action_loss_mean" in each:
            print(f"{len(runs)} seeds: {_line('action loss', each, 'action_loss')}")
            continue
        print(f"{len(runs)} seeds{target}: {_line('return', each)}")
        if "success_mean" in each:
            print(f"{len(runs)} seeds{target}: {_line('success rate', each, 'success')}")


def _line(label: str, values: Mapping[str, Any], name: str = "return") -> str:
    deviation = values[f"{name}_std"]
    spread = "" if deviation is None else f" ± {deviation:.3f} (standard deviation between seeds)"
    least, most = values[f"{name}_least"], values[f"{name}_most"]
    return f"{label} {values[f'{name}_mean']:.3f}{spread}, from {least:.3f} to {most:.3f}"
