"""What happens beside the updates of a run: evaluations, checkpoints, the learning curve."""

import time
from collections.abc import Callable, Sequence
from os import PathLike

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from rltransformers.training.evaluation import EvaluationResult
from rltransformers.training.run_folder import RunFolder

SAVE_SECONDS = 60.0
"""Longest time between two ``last.zip``: what a killed run can lose."""


class RunCallback(BaseCallback):
    """Evaluates every ``every`` steps (0: never), keeps ``best.zip``, and writes ``last.zip`` at least once a minute.

    All of it happens between updates: online before a rollout starts, offline after a gradient step. ``save`` writes a
    checkpoint to a path; ``evaluate`` returns the results that are logged and drawn; ``report`` gets one line for
    people.

    The best checkpoint is the one of the highest mean return, over target returns the highest of them.
    """

    def __init__(
        self,
        folder: RunFolder,
        every: int,
        evaluate: Callable[[], Sequence[EvaluationResult]],
        save: Callable[[PathLike[str]], None],
        steps: str,
        online: bool,
        report: Callable[[str], None],
    ) -> None:
        super().__init__()
        self.folder, self.every, self.steps, self.online = folder, every, steps, online
        self._evaluate, self._save, self._report = evaluate, save, report
        self._evaluated_at, self._best, self._saved_at = 0, -np.inf, 0.0
        self._results: Sequence[EvaluationResult] = []

    def _on_training_start(self) -> None:
        step = self.model.num_timesteps
        self._evaluated_at, self._results = step, []
        past = [score(results) for at, results in self.folder.read_evaluations() if at <= step]
        self._best = max(past, default=-np.inf)
        self._save_last()

    def _on_rollout_start(self) -> None:
        self._between_updates()

    def _on_step(self) -> bool:
        if not self.online:
            self._between_updates()
        return True

    def _between_updates(self) -> None:
        step = self.model.num_timesteps
        if self.every and step // self.every > self._evaluated_at // self.every:
            self.evaluate()
        elif time.monotonic() - self._saved_at > SAVE_SECONDS:
            self._save_last()

    def finish(self) -> Sequence[EvaluationResult]:
        """The evaluation of the finished run: a new one, unless the last update was evaluated already."""
        if self._results and self._evaluated_at == self.model.num_timesteps:
            return self._results
        return self.evaluate()

    def evaluate(self) -> Sequence[EvaluationResult]:
        """Evaluate, log, save and draw now."""
        step = self.model.num_timesteps
        results = self._evaluate()
        self._evaluated_at, self._results = step, results
        self.folder.append_evaluation(step, results)
        self._log(step, results)
        if score(results) > self._best:
            self._best = score(results)
            self._save(self.folder.best)
        self._save_last()
        self.folder.plot(self.steps)
        return results

    def _log(self, step: int, results: Sequence[EvaluationResult]) -> None:
        for result in results:
            target = "" if result.target_return is None else f"_target_{result.target_return:g}"
            summary = result.summary()
            for key in ("return_mean", "return_std", "return_iqm", "length_mean", "success_rate", "normalized_score"):
                if key in summary:
                    self.logger.record(f"eval/{key}{target}", summary[key])
            self._report(f"{step:>10,} {self.steps}: {one_line(result)}")
        self.logger.dump(step)

    def _save_last(self) -> None:
        self._save(self.folder.last)
        self._saved_at = time.monotonic()


def score(results: Sequence[EvaluationResult]) -> float:
    """The number that ``best.zip`` maximises: mean return, over target returns the highest."""
    return max(float(np.mean(result.returns)) for result in results)


def one_line(result: EvaluationResult) -> str:
    """Return, success rate and target of one result, for a log."""
    summary = result.summary()
    success = f", success {summary['success_rate']:.2f}" if "success_rate" in summary else ""
    aim = "" if result.target_return is None else f" (target {result.target_return:g})"
    return f"return {summary['return_mean']:.2f} ± {summary['return_std']:.2f}{success}{aim}"
