"""Trackers of experiments beside TensorBoard: every number that a run logs goes to Weights & Biases or MLflow as well.

Project, account and server are said as these libraries want it, in ``WANDB_PROJECT`` and ``WANDB_MODE``, or in
``MLFLOW_TRACKING_URI`` and ``MLFLOW_EXPERIMENT_NAME``.
"""

import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from stable_baselines3.common.logger import KVWriter

from rltransformers.core.errors import ConfigError, error_line, require
from rltransformers.core.files import replacing


class _Tracker(KVWriter, ABC):
    """A run of a tracker; its id is kept in the run folder, so that a resumed run goes on in the same one."""

    def __init__(self, package: Any, folder: Path, settings: Mapping[str, Any]) -> None:
        self.package = package
        kept = folder / f"{type(self).__name__.lower()}_id.txt"
        identity = self.begin(folder, settings, kept.read_text().strip() if kept.is_file() else None)
        with replacing(kept) as temporary:
            temporary.write_text(f"{identity}\n")

    @abstractmethod
    def begin(self, folder: Path, settings: Mapping[str, Any], identity: str | None) -> str:
        """Begin a run, or go on with that of ``identity``; returns its id."""

    @abstractmethod
    def log(self, numbers: dict[str, float], step: int) -> None: ...

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        excluded = {key for key, formats in key_excluded.items() if "tensorboard" in (formats or ())}
        numbers = {
            key: float(value)
            for key, value in key_values.items()
            if isinstance(value, Real) and not isinstance(value, bool) and key not in excluded
        }
        if numbers:
            try:
                self.log(numbers, step)
            except Exception as error:  # of whatever kind they raise; a tracker is not worth a run
                name = type(self).__name__.lower()
                warnings.warn(f"{name} did not take metrics: {error_line(error)}; the run goes on", stacklevel=2)


class Wandb(_Tracker):
    """A run of Weights & Biases, with ``step`` as the axis of every curve."""

    def begin(self, folder: Path, settings: Mapping[str, Any], identity: str | None) -> str:
        self.run = self.package.init(
            name=folder.name, dir=str(folder), config=dict(settings), id=identity, resume="allow", reinit="create_new"
        )
        self.run.define_metric("*", step_metric="step")  # its own step only rises, and a resumed run goes back a little
        return str(self.run.id)

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.run.log(numbers | {"step": step})

    def close(self) -> None:
        self.run.finish()


class Mlflow(_Tracker):
    """A run of MLflow."""

    def begin(self, folder: Path, settings: Mapping[str, Any], identity: str | None) -> str:
        run = self.package.start_run(run_id=identity, run_name=folder.name)
        if identity is None:
            self.package.log_params({_plain(name): value for name, value in settings.items()})
        return str(run.info.run_id)

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.package.log_metrics({_plain(name): number for name, number in numbers.items()}, step=step)

    def close(self) -> None:
        self.package.end_run()


def _plain(name: str) -> str:
    """A name as MLflow takes it."""
    return re.sub(r"[^\w\-. :/]", "_", name)


TRACKERS: Mapping[str, type[_Tracker]] = {"wandb": Wandb, "mlflow": Mlflow}


def begin_tracking(tracker: str, folder: Path, settings: Mapping[str, Any]) -> KVWriter:
    """The writer of a tracker for the run in ``folder``, in which settings stand as hyperparameters.

    Raises:
        MissingExtraError: without its package.
        ConfigError: if it does not begin, for example without an account.
    """
    package = require(tracker, "track")
    try:
        return TRACKERS[tracker](package, folder, settings)
    except Exception as error:  # of whatever kind they raise
        way_out = {"wandb": "log in, or set WANDB_MODE=offline", "mlflow": "look at MLFLOW_TRACKING_URI"}[tracker]
        raise ConfigError(f"tracker {tracker} does not begin: {error_line(error)}; {way_out}") from error
