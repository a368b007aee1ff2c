"""All variants of a config with all seeds, in one folder that goes on where it stopped; what is finished is skipped."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from rltransformers.cli import trust
from rltransformers.cli.engines import Engine, Order
from rltransformers.cli.keywords import check_config
from rltransformers.cli.runs import say
from rltransformers.cli.seeds import RunKey, failures, train_runs
from rltransformers.cli.variants import Variant
from rltransformers.cli.worker import order_of
from rltransformers.core.errors import ConfigError
from rltransformers.core.files import check_free, check_no_run, file_lock
from rltransformers.training.runs.comparison import Comparison, compare
from rltransformers.training.runs.experiment import ExperimentConfig, read_experiment
from rltransformers.training.runs.groups import ASIDE, differing
from rltransformers.training.runs.run_folder import RunFolder


def train_variants(
    name: str, variants: Sequence[Variant], seeds: Sequence[int], engine: Engine, jobs: int | None, trusted: bool
) -> tuple[Comparison, str]:
    """Train every variant with every seed in the folder ``name``, ``jobs`` runs at a time, and compare them.

    A run that is finished is skipped, one that was stopped goes on. When a run fails, no other of its variant begins.
    Returns the comparison of all runs, and what failed in words, empty where nothing did.

    Raises:
        ConfigError: for a variant that cannot work, a folder with a run of another config, and where no run has an
            evaluation.
    """
    for variant in variants:  # before the first one is trained
        try:
            check_config(variant.config)
        except ConfigError as error:
            raise ConfigError(f"variant {variant.name}: {error}") from error
    root = Path(variants[0].config.output) / name
    check_no_run(root, "sweep")
    with file_lock(root / ".lock", f"sweep {root}", ConfigError):
        folders: dict[RunKey, RunFolder] = {}
        orders: dict[RunKey, Callable[[], Order]] = {}
        states: list[str] = []
        for variant in variants:
            for seed in seeds[: variant.seeds]:
                key, config = (variant.name, seed), replace(variant.config, seed=seed, output=str(root))
                folder = folders[key] = RunFolder(root / f"{variant.folder}-seed{seed}")
                states.append(state := state_of(folder, config))
                if state == "stopped":
                    programs = trust.programs(config, folder.last)
                    trust.require_trust([each for each in programs if not each.place], folder.path, trusted)
                if state != "finished":
                    orders[key] = partial(_order, config, folder)
        orders = dict(sorted(orders.items(), key=lambda pair: seeds.index(pair[0][1])))  # first a seed of all variants
        counts = ", ".join(f"{states.count(each)} {each}" for each in ("finished", "stopped", "new") if each in states)
        say(f"{len(folders)} runs in {root}: {counts}")
        try:
            _, failed = train_runs(orders, engine, jobs)
        except KeyboardInterrupt:
            say("the same command goes on")
            raise
    there = {key: folder for key, folder in folders.items() if folder.config.is_file()}
    named = {variant.name: [there[key].path for key in there if key[0] == variant.name] for variant in variants}
    try:
        return compare({name: paths for name, paths in named.items() if paths}), failures(failed)
    except ConfigError as error:
        raise ConfigError(f"{failures(failed)} failed, see above; the same command tries again") from error


def _order(config: ExperimentConfig, folder: RunFolder) -> Order:
    """The process of a run; what ``compare`` reads comes from machines without a common file system, too."""
    files = folder.config, folder.begun, folder.metrics, folder.evaluations, folder.evaluation, folder.validation
    order = order_of(config, folder.path.name, goes_on=True)
    return replace(order, results=(*order.results, *(path.absolute() for path in files)))


def state_of(folder: RunFolder, config: ExperimentConfig) -> Literal["finished", "stopped", "new"]:
    """What has become of the run of ``config`` in its folder; ConfigError where that holds something else."""
    if not folder.config.is_file():
        check_free(folder.path)
        if folder.path.exists():
            shutil.rmtree(folder.path)  # of a process that was killed before it had written its config
        return "new"
    stored = read_experiment(folder.config).to_dict()
    if other := [key for key in differing([stored, config.to_dict()]) if key.partition(".")[0] not in ASIDE]:
        raise ConfigError(
            f"{folder.path} holds a run of another config ({', '.join(other)} differ); give this sweep another --name"
        )
    return "finished" if folder.evaluation.is_file() else "stopped"
