"""Log of a run that counts updates, lines of means and a progress bar; and what all agents ask of callbacks."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EventCallback
from stable_baselines3.common.logger import Logger
from torch import Tensor
from tqdm.auto import tqdm

from rltransformers.core.errors import ConfigError, DataError


def check_callback(callback: Any) -> None:
    """Raise ConfigError for a class in place of a callback, which would be called as a function in every step."""
    if isinstance(callback, type):
        raise ConfigError(f"callback {callback.__name__} is a class; give an instance of it: {callback.__name__}(...)")


def with_inner(callbacks: Iterable[BaseCallback]) -> Iterator[BaseCallback]:
    """The callbacks, and those that they call in turn."""
    for callback in callbacks:
        yield callback
        if isinstance(callback, CallbackList):
            yield from with_inner(callback.callbacks)
        elif isinstance(callback, EventCallback) and callback.callback is not None:
            yield from with_inner([callback.callback])


class IntervalLog:
    """Means of the metrics of an interval of updates, kept on the device until they are written.

    The sums so far live in ``interval``, {name: (sum, count)}, which a checkpoint holds.
    """

    def __init__(self, logger: Logger, updates: int, interval: dict[str, tuple[Tensor, int]]) -> None:
        self._logger, self._first, self._started = logger, updates, time.perf_counter()
        self._interval = interval

    def add(self, metrics: Mapping[str, Tensor]) -> None:
        for name, value in metrics.items():
            total, count = self._interval.get(name, (None, 0))
            self._interval[name] = (value if total is None else total + value, count + 1)

    def write(self, updates: int, learning_rate: float) -> None:
        """Write and forget the means.

        Raises:
            DataError: when the loss is not finite.
        """
        for name, (total, count) in self._interval.items():
            mean = float(total) / count
            if name == "train/loss" and not math.isfinite(mean):
                raise DataError(
                    f"the loss is {mean} after {updates} updates; lower learning_rate or"
                    " weight_decay, or look for extreme values in the data"
                )
            self._logger.record(name, mean)
        seconds = time.perf_counter() - self._started
        self._logger.record("train/learning_rate", learning_rate)
        self._logger.record("time/updates_per_second", (updates - self._first) / max(seconds, 1e-9))
        self._logger.record("time/updates", updates, exclude="tensorboard")
        self._logger.dump(updates)
        self._interval.clear()
        self._first, self._started = updates, time.perf_counter()


class ProgressBar(BaseCallback):
    """A bar up to ``total`` updates, with the newest validation behind it (that of SB3 needs an environment)."""

    def __init__(self, total: int) -> None:
        super().__init__()
        self._total = total

    def _on_training_start(self) -> None:
        self._bar = tqdm(total=self._total, initial=self.num_timesteps, unit="update")

    def _on_step(self) -> bool:
        agent: Any = self.model
        if (newest := agent.newest_validation) is not None:
            self._bar.set_postfix_str(f"action loss {newest.action_loss:.4f} at {newest.step:,}", refresh=False)
        self._bar.update()
        return True

    def _on_training_end(self) -> None:
        self._bar.close()
