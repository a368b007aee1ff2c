"""Evaluations of a Decision Transformer while it learns, under the names that Stable-Baselines3 has for them."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback, EventCallback

from rltransformers.core.errors import ConfigError
from rltransformers.core.files import replacing
from rltransformers.core.ranges import Count, Environments, Episodes, Seed, strict
from rltransformers.training.evaluation import EvaluationResult, record_results
from rltransformers.training.offline.validation import ValidationResult, record_validation


class EvaluationCallback(EventCallback):
    """The ``EvalCallback`` of this package: evaluates, logs, keeps the best and every result.

    The log gets ``eval/mean_reward``, ``eval/mean_ep_length``, where episodes say so ``eval/success_rate``, and
    ``time/total_timesteps`` (updates). Of several target returns these are of the one with the highest mean; each has
    ``eval/return_mean_target_R`` beside it. Where a return head chooses, ``eval/predicted_return`` is its first answer.
    A model with ``validation`` also logs the numbers of its ``validate``: ``eval/action_loss`` and others.

    Args:
        env: what ``DecisionTransformer.evaluate`` takes; None for no environment. The best model is then that of the
            lowest ``eval/action_loss``, which the model counts and saves, and the model needs ``validation``; other
            callbacks find minus that loss as ``best_mean_reward``.
        target_returns: as there.
        n_eval_episodes: per target return.
        eval_freq: updates between two evaluations.
        best_model_save_path: folder for ``best_model.zip``, the best model so far.
        log_path: folder for ``evaluations.npz`` with timesteps [E], results and ep_lengths [E, episodes], all of the
            best target return, as ``EvalCallback`` writes it, and action_losses [E] of a model with ``validation``.
        deterministic: most probable actions, or samples.
        num_envs, env_kwargs, seed: as in ``evaluate``; the same episodes every time.
        patience: evaluations without a new best model after which training ends; None: it does not.
        callback_on_new_best: called after an evaluation with a new best model, such as Stable-Baselines3's
            ``StopTrainingOnRewardThreshold``; its False ends training.
        callback_after_eval: called after every evaluation, such as ``StopTrainingOnNoModelImprovement``.
    """

    @strict
    def __init__(
        self,
        env: Any = None,
        target_returns: Sequence[float] | float | None = None,
        n_eval_episodes: Episodes = 10,
        eval_freq: Count = 1_000,
        log_path: str | os.PathLike[str] | None = None,
        best_model_save_path: str | os.PathLike[str] | None = None,
        deterministic: bool = True,
        num_envs: Environments = 10,
        env_kwargs: Mapping[str, Any] | None = None,
        seed: Seed = 0,
        callback_on_new_best: BaseCallback | None = None,
        callback_after_eval: BaseCallback | None = None,
        verbose: int = 0,
        patience: Count | None = None,
    ) -> None:
        super().__init__(callback_after_eval, verbose)
        self.callback_on_new_best = callback_on_new_best
        if callback_on_new_best is not None:
            callback_on_new_best.parent = self
        if env is None and target_returns is not None:
            raise ConfigError("target_returns are for an environment, and env is None; leave them out")
        self.env, self.target_returns, self.eval_freq = env, target_returns, eval_freq
        self.patience, self._since = patience, 0
        self.options = {
            "episodes": n_eval_episodes,
            "num_envs": num_envs,
            "env_kwargs": env_kwargs,
            "seed": seed,
            "deterministic": deterministic,
        }
        self.log_path = None if log_path is None else Path(log_path) / "evaluations.npz"
        self.best_path = None if best_model_save_path is None else Path(best_model_save_path) / "best_model.zip"
        self.best_mean_reward = self.last_mean_reward = -np.inf
        self.results: list[tuple[int, EvaluationResult]] = []
        """Update and result of every evaluation in the environment, of the best target return."""
        self.validations: list[tuple[int, ValidationResult]] = []
        """Update and result of every evaluation on held-out episodes."""

    def _init_callback(self) -> None:
        if self.env is None:
            cast(Any, self.model).held_out  # noqa: B018 (raises for a model without)
        else:
            cast(Any, self.model).targets_of(self.target_returns)
        if self.callback_on_new_best is not None:
            self.callback_on_new_best.init_callback(self.model)

    def _on_training_start(self) -> None:
        super()._on_training_start()
        if self.callback_on_new_best is not None:
            self.callback_on_new_best.on_training_start(self.locals, self.globals)

    def update_child_locals(self, locals_: dict[str, Any]) -> None:
        super().update_child_locals(locals_)
        if self.callback_on_new_best is not None:
            self.callback_on_new_best.update_locals(locals_)

    def _on_step(self) -> bool:
        return self.evaluate() if self.model.num_timesteps % self.eval_freq == 0 else True

    def evaluate(self) -> bool:
        """Evaluate, log, save and call the other callbacks now; False where one of them ends training."""
        model: Any = self.model
        step, better = model.num_timesteps, False
        if self.env is not None:
            better = self._play(model, step)
        if self.env is None or model.validates:
            validation: ValidationResult = model.validate()
            self.validations.append((step, validation))
            record_validation(self.logger, validation)
            if self.env is None:
                better = model.held_out.note(validation.action_loss)
                self.best_mean_reward, self.last_mean_reward = -model.held_out.best, -validation.action_loss
            if self.verbose:
                print(f"update {step:,}: {validation.line()}")
        self.logger.record("time/total_timesteps", step, exclude="tensorboard")
        self.logger.dump(step)
        if self.log_path is not None:
            self._write(self.log_path)
        self._since = 0 if better else self._since + 1
        if better:
            if self.best_path is not None:
                model.save(self.best_path)
            if self.callback_on_new_best is not None and not self.callback_on_new_best.on_step():
                return False
        since = self._since if self.env is not None else model.held_out.since
        return self._on_event() and (self.patience is None or since < self.patience)

    def _play(self, model: Any, step: int) -> bool:
        """Evaluate in the environment; whether the mean is the highest so far."""
        results: list[EvaluationResult] = model.evaluate(self.env, self.target_returns, **self.options)
        best = record_results(self.logger, results)
        self.results.append((step, best))
        self.last_mean_reward = best.mean
        if self.verbose:
            print(f"update {step:,}: mean reward {best.mean:.2f} +/- {best.std:.2f}")
        better = best.mean > self.best_mean_reward
        self.best_mean_reward = max(self.best_mean_reward, best.mean)
        return better

    def _write(self, path: Path) -> None:
        arrays: dict[str, Any] = {"timesteps": [step for step, _ in self.results or self.validations]}
        if self.results:
            arrays["results"] = [result.returns for _, result in self.results]
            arrays["ep_lengths"] = [result.lengths for _, result in self.results]
            if all(result.successes is not None for _, result in self.results):
                arrays["successes"] = [result.successes for _, result in self.results]
        if self.validations:
            arrays["action_losses"] = [result.action_loss for _, result in self.validations]
        with replacing(path) as temporary:
            np.savez(temporary, **arrays)
