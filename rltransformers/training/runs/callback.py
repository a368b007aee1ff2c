"""Callback beside the updates of a run: evaluations, checkpoints, the learning curve, stopping."""

import time
from collections.abc import Callable, Sequence
from os import PathLike

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

from rltransformers.core.errors import DataError, error_line
from rltransformers.core.signals import Stopped
from rltransformers.core.world import Sharing
from rltransformers.training.evaluation import EvaluationResult, record_results
from rltransformers.training.offline.validation import ValidationResult, record_validation
from rltransformers.training.runs.run_folder import RunFolder

SAVE_SECONDS = 60.0
"""Longest time between two ``last.zip``: what a killed run can lose, unless saving is slow."""
SAVE_SHARE = 0.05
"""Largest share of the time that goes into ``last.zip``: a large replay takes long to write."""
DRAW_SECONDS = 10.0
"""Least time between two drawings of the learning curve, each of which takes a quarter of a second."""


class RunCallback(BaseCallback):
    """Evaluates every ``every`` steps (0: never), keeps ``best.zip``, and writes ``last.zip`` about once a minute.

    All of it happens between updates: online before a rollout starts, offline after a gradient step. The metrics of a
    step are logged before the checkpoint of that step is written, its evaluation after it: ``RunFolder.cut`` relies on
    this order. Of the processes of ``sharing`` the first one evaluates and writes, while the others wait; what depends
    on more than the step, as signals and the time of day, they decide together. All call ``save``.

    Args:
        evaluate: returns the results that are logged and drawn, and leaves the run as it was; none without an
            environment.
        validate: the same for held-out episodes; returns None where there are none. ``best.zip`` is chosen by the
            results, and by these where there are no results.
        save: writes a checkpoint to a path.
        report: gets one line for people.
        restart: is called with the step at the start and behind every multiple of ``restart_every`` (0: never);
            ``last.zip`` is then written right before, and nowhere else.
        evaluated: gets the step and the score of every evaluation during training; what it raises ends the run.
        patience: evaluations without a new ``best.zip`` after which training ends; None: it does not.
    """

    def __init__(
        self,
        folder: RunFolder,
        every: int,
        *,
        evaluate: Callable[[], Sequence[EvaluationResult]],
        save: Callable[[PathLike[str]], None],
        steps: str,
        online: bool,
        report: Callable[[str], None],
        restart_every: int,
        restart: Callable[[int], None],
        evaluated: Callable[[int, float], None] | None = None,
        sharing: Sharing | None = None,
        validate: Callable[[], ValidationResult | None] = lambda: None,
        patience: int | None = None,
    ) -> None:
        super().__init__()
        self.sharing = Sharing() if sharing is None else sharing
        self.folder, self.every, self.steps, self.online = folder, every, steps, online
        self.restart_every, self._restart = restart_every, restart
        self._evaluate, self._validate, self._save, self._report = evaluate, validate, save, report
        self._patience, self._over = patience, False
        self._evaluated = evaluated
        self._evaluated_at, self._saved_at, self._save_took, self._drawn_at = 0, 0.0, 0.0, -np.inf
        self._best: float | None = None  # score so far, once it was asked for
        self._restarted_at: int | None = None
        self._signal: int | None = None
        self._evaluating = False

    def stop(self, signum: int) -> None:
        """End the run with ``Stopped`` where it can go on from ``last.zip`` as if it had not stopped.

        During an evaluation that is now, for the checkpoint was written before it; else after the running update. A
        second call ends it now, unless there are other processes: ``torchrun`` repeats every signal of the terminal.
        """
        if self._evaluating or (self._signal is not None and self.sharing.is_single):
            raise Stopped(signum)
        first, self._signal = self._signal is None, signum
        if first:
            self._report("stopping after the running update; a second signal ends at once")

    def _on_training_start(self) -> None:
        self._evaluated_at, self._best = self._last_evaluation(), None
        if not self.restart_every:
            self._save_last()
        if not self.online:
            self._between_updates()  # the run may have been stopped before the evaluation of its last step

    def _last_evaluation(self) -> int:
        past = self.folder.read_evaluations() if self.sharing.is_leader else []
        return self.sharing.broadcast(past[-1][0] if past else 0)

    def _on_rollout_start(self) -> None:
        self._between_updates()

    def _on_step(self) -> bool:
        if not self.online:
            self._between_updates()
        return not self._over

    def is_over(self) -> bool:
        """Before training: whether ``patience`` was over in an earlier process; evaluates what that had not."""
        if self._patience is None:
            return False
        self._evaluated_at, self._best = self._last_evaluation(), None
        self._between_updates()
        self._judge()
        return self._over

    def _between_updates(self) -> None:
        step, last = self.model.num_timesteps, self._restarted_at
        if self.restart_every and (last is None or step // self.restart_every > last // self.restart_every):
            self._restarted_at = step
            self._save_last()  # before, so that the run that goes on from it makes the same restart
            self._restart(step)
        patience = max(SAVE_SECONDS, self._save_took / SAVE_SHARE)
        late = self.sharing.is_leader and time.monotonic() - self._saved_at > patience
        signum, due = self.sharing.max(self._signal or 0, late)
        self._signal = int(signum) or None
        if self._signal is not None:
            if not self.restart_every:
                self._save_last()
            raise Stopped(self._signal)
        if self.every and step // self.every > self._evaluated_at // self.every:
            self.evaluate()
        elif not self.restart_every and due:
            self._save_last()

    def finish(self) -> Sequence[EvaluationResult]:
        """The evaluation of the finished run: a new one, unless the last update was evaluated already."""
        if self._last_evaluation() != self.model.num_timesteps:
            return self.evaluate(last=True)
        if not self.sharing.is_leader:
            return []
        self._draw(last=True)
        return self.folder.read_evaluations()[-1][1]

    def evaluate(self, last: bool = False) -> Sequence[EvaluationResult]:
        """Save, evaluate, log and draw now; ``last``: with the metrics of the last update. Process 0 has results."""
        step = self.model.num_timesteps
        if last or not self.restart_every:
            self._save_last()
        self._evaluating = True
        if self._signal is not None:
            raise Stopped(self._signal)
        results, validation = (self._evaluate(), self._validate()) if self.sharing.is_leader else ([], None)
        self._evaluating = False
        self._evaluated_at = step
        better = False
        if self.sharing.is_leader:
            self._log(step, results, validation, self.logger if last else Logger(None, self.logger.output_formats))
            if self._best is None:
                self._best = max(
                    (score(past.results, past.validation) for past in self.folder.entries()), default=-np.inf
                )
            new = score(results, validation)
            better = new > self._best or not self.folder.best.exists()
            self._best = max(self._best, new)
        if self.sharing.broadcast(better):
            self._save(self.folder.best)
        if self.sharing.is_leader:
            self.folder.append_evaluation(step, results, validation)
            self._draw(last)
        if not last:
            self._judge()
            if self._evaluated is not None and self.sharing.is_leader:
                self._evaluated(step, score(results, validation))
        return results

    def _judge(self) -> None:
        """Decide whether patience is over, and say so once."""
        if self._patience is None or self._over:
            return
        since = 0
        if self.sharing.is_leader:
            scores = [score(past.results, past.validation) for past in self.folder.entries()]
            since = len(scores) - 1 - int(np.argmax(scores)) if scores else 0
        self._over = self.sharing.broadcast(since) >= self._patience
        if self._over:
            self._report(
                f"no better evaluation in the last {self._patience}: training ends (evaluation.patience); to go on,"
                " resume the run with a larger one"
            )

    def _draw(self, last: bool) -> None:
        """The learning curve, unless it was drawn a moment ago and will be drawn again."""
        if last or time.monotonic() - self._drawn_at > DRAW_SECONDS:
            try:
                self.folder.plot(self.steps)
            except DataError:  # of the evaluations, which the run needs
                raise
            except Exception as error:  # a picture is not worth a run
                self._report(f"{self.folder.learning_curve} cannot be drawn ({error_line(error)}); the run goes on")
            self._drawn_at = time.monotonic()

    def _log(
        self, step: int, results: Sequence[EvaluationResult], validation: ValidationResult | None, logger: Logger
    ) -> None:
        if results:
            record_results(logger, results)
        for result in results:
            self._report(f"{step:>10,} {self.steps}: {result.line()}")
        if validation is not None:
            record_validation(logger, validation)
            self._report(f"{step:>10,} {self.steps}: {validation.line()}")
        if self.online:
            logger.record("train/n_updates", self.model._n_updates, exclude="tensorboard")
        logger.dump(step)

    def _save_last(self) -> None:
        began = time.monotonic()
        if self.sharing.is_leader:
            self.folder.sync_logs()
        self._save(self.folder.last)
        self._saved_at = time.monotonic()
        self._save_took = self._saved_at - began


def score(results: Sequence[EvaluationResult], validation: ValidationResult | None = None) -> float:
    """The number that ``best.zip`` maximizes: mean return, over target returns the highest.

    Without an environment it is minus the action loss on held-out episodes.
    """
    if not results and validation is not None:
        return -validation.action_loss
    return max(result.mean for result in results)
