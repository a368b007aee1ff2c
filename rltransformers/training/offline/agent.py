"""What a Decision Transformer does besides its algorithm: its log and callbacks, its store of actions, its exits."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Self, cast

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback, EvalCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.utils import configure_logger
from torch import Tensor

from rltransformers.algorithms.calibration import learn_then_test
from rltransformers.algorithms.decision import difference
from rltransformers.blocks.leaving import NEVER, Confident
from rltransformers.core.described import count, spaces_line
from rltransformers.core.device import forked_rng
from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import Count, UnitInterval, strict
from rltransformers.core.seeding import step_seed
from rltransformers.data import ContextSampler
from rltransformers.policies.decider import ActingMode
from rltransformers.policies.returns import target_list
from rltransformers.training.interval_log import check_callback, with_inner
from rltransformers.training.offline.data import HeldOut, check_longest, shaped
from rltransformers.training.offline.one_step import OneStep
from rltransformers.training.offline.stored_agent import StoredDecisionTransformer
from rltransformers.training.offline.validation import ValidationResult, validate
from rltransformers.training.runs.run_card import write_run_card
from rltransformers.training.stepping import NO_TARGET, DecisionSteps

STORE_WINDOWS = 64
"""Windows that are read at once for a store."""


class OfflineAgent(StoredDecisionTransformer):
    """Base class of agents that learn from a dataset, with the habits of Stable-Baselines3."""

    @property
    def learning_rate(self) -> float:
        """That of the optimizer after the warm-up; another one holds from the next update on."""
        return self.settings.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self.settings = replace(self.settings, learning_rate=value)

    @property
    def online_timesteps(self) -> int:
        """Steps of the environment that ``learn_online`` has learned from or is learning from."""
        return self._online.timesteps

    @property
    def online_updates(self) -> int:
        """Updates that are still to come for the episodes played last, where ``learn_online`` was stopped."""
        return self._online.updates

    def _needed_sampler(self, purpose: str, way_out: str | None = None) -> ContextSampler:
        if self._sampler is None:
            way_out = way_out or f"give one to {self.kind}.load(path, dataset=...)"
            raise ConfigError(f"this model has no {purpose}; {way_out}")
        return self._sampler

    def _with_advantages(self, sampler: ContextSampler, progress_bar: bool) -> ContextSampler:
        """Windows to learn from; before the first update of a policy of advantages, fit what these are over."""
        if self._advantage is None or self._advantage.edges is not None:
            return sampler
        windows = self._windows_of(sampler.trajectories)
        bins, metrics = self._advantage.fit(windows, self.seed, progress_bar)
        for name, value in metrics.items():
            self.logger.record(name, value)
        self._sampler = windows.with_bins(bins)
        if self._validation_sampler is not None:
            self._validation_sampler = self._sampler_of(self._validation_sampler.trajectories)
        return self._sampler

    @torch.no_grad()
    def _fill_store(self, sampler: ContextSampler) -> None:
        """Read episodes with today's weights and store what the head reads at every step, and the action taken there.

        Every step is read once, with K - h to K steps of context where there are as many, h half of the context length
        K: as in acting. Where the dataset has more steps than the store, the seed decides which windows are taken.
        """
        policy, readout = self.policy, self.policy.head.readout
        assert readout is not None
        returns = torch.from_numpy(sampler.trajectories.returns)
        episodes = torch.arange(len(returns), device="cpu")
        if readout.options.better:
            episodes = episodes[returns >= returns.mean()]
        windows, wanted = sampler.windows_over(episodes)
        generator = torch.Generator("cpu").manual_seed(step_seed(self.seed, self.num_timesteps, "datastore"))
        order = torch.randperm(len(windows), generator=generator, device="cpu")
        store, steps, trains = readout.store, 0, policy.training
        store.clear()
        policy.eval()
        for part in order.split(STORE_WINDOWS):
            batch, rows = sampler.window(windows[part]).to(self.device), wanted[part].to(self.device)
            features, _ = policy.read(
                batch.observations, batch.actions, batch.return_to_go, batch.timestep, batch.valid
            )
            actions = policy.head.as_numbers(batch.actions)
            store.add(features[rows], actions[rows], batch.episode[:, None].expand(rows.shape)[rows])
            steps += int(rows.sum())
            if steps >= store.size:
                break
        policy.train(trains)

    def build_datastore(self) -> Self:
        """Fill the store of the readout with features of the dataset under today's weights, and the recorded actions.

        ``learn`` does so, too: every ``refresh`` updates, and for "knn" at its end.

        Raises:
            ConfigError: when the model has no readout, or was loaded without a dataset.
        """
        if self.readout is None:
            raise ConfigError('this model has no readout to fill; give policy_kwargs={"readout": "knn"} or "spalm"')
        self._fill_store(self._needed_sampler("dataset to read"))
        return self

    @torch.no_grad()
    @strict
    def calibrate_exits(
        self,
        bound: UnitInterval = 0.1,
        error: UnitInterval = 0.05,
        windows: Count = 512,
        candidates: Count = 20,
        dataset: Any = None,
    ) -> float:
        """Set the threshold of a policy with ``depth: calm`` as low as is safe, and return it.

        With probability 1 - ``error`` over the windows, decisions with early exits differ from those of the whole stack
        by at most ``bound`` in expectation: the share of steps with another most probable action, for a Box the
        difference by the width of its bounds (Schuster et al. 2022, arXiv 2207.07061, section 4).

        Args:
            windows: drawn from the data, the samples of the test.
            candidates: thresholds that are tried, from 1 downwards in equal steps.
            dataset: what to calibrate on, best other data than it was trained on; None for the data of training.

        Raises:
            ConfigError: the depth of the backbone is another one, there is no dataset, or it has other spaces.
        """
        leaving = self.policy.backbone.halt
        if not isinstance(leaving, Confident):
            raise ConfigError(f"only depth 'calm' has a threshold, not {self.backbone_config.choices.depth.name!r}")
        if dataset is not None:
            sampler = self._sampler_of_others(dataset)
        else:
            sampler = self._needed_sampler("dataset to calibrate on", "pass calibrate_exits(dataset=...)")
        generator = torch.Generator().manual_seed(step_seed(self.seed, self.num_timesteps, "batch"))
        batch = sampler.sample(windows, generator).to(self.device)

        def outputs(threshold: float) -> Tensor:
            leaving.threshold.fill_(threshold)
            return self.policy(batch.observations, batch.actions, batch.return_to_go, batch.timestep, batch.valid)

        def losses(threshold: float) -> Tensor:
            differs = difference(self.policy.head, outputs(threshold), whole)
            return torch.where(batch.valid, differs, 0.0).sum(1) / batch.valid.sum(1).clamp(min=1)

        whole = outputs(2 * NEVER)
        thresholds = [1.0 - index / candidates for index in range(candidates + 1)]
        lowest = learn_then_test(thresholds, losses, bound, error)
        leaving.threshold.fill_(2 * NEVER if lowest is None else lowest)
        return float(leaving.threshold)

    @property
    def held_out(self) -> HeldOut:
        """Numbers of the held-out episodes, and what ``EvaluationCallback`` without an environment counts.

        Raises ConfigError for a model without ``validation``.
        """
        if self._held_out is None:
            raise ConfigError("this model holds no episodes out; make it with validation=0.1")
        return self._held_out

    @property
    def validates(self) -> bool:
        """Whether ``validate`` has held-out episodes: the model has ``validation``, and its dataset at hand."""
        return self._validation_sampler is not None

    @strict
    def validate(self, dataset: Any = None) -> ValidationResult:
        """How well recorded actions are predicted that the model has not learned from; no environment is needed.

        Every step counts once, predicted as in acting from the recorded K - h to K steps before it (h half of the
        context length K; fewer at the start of an episode) and the return that the episode really had from there.

        Args:
            dataset: other episodes, each of which counts; None for the held-out ones (``validation`` of the model).

        Raises:
            ConfigError: no episodes are held out, or the model was loaded without its dataset, of which the
                predictions that it is compared with are made; a dataset with other spaces.
            DataError: as the constructor.
        """
        training = self._needed_sampler("dataset that validate could compare it with")
        if dataset is not None:
            sampler = self._sampler_of_others(dataset)
        elif self._validation_sampler is not None:
            sampler = self._validation_sampler
        else:
            raise ConfigError(
                "this model holds no episodes out; make it with validation=0.1, or pass validate(dataset=...)"
            )
        check_longest(self.policy.backbone, sampler.trajectories)
        if self._one_step is None:
            self._one_step = OneStep(self.policy, training.trajectories)
        with forked_rng(self.device):
            torch.manual_seed(step_seed(self.seed, self.num_timesteps, "validation"))
            result = validate(self.policy, sampler, self._one_step, self.settings.batch_size, self.num_timesteps)
        self.newest_validation = result
        return result

    def _sampler_of_others(self, dataset: Any) -> ContextSampler:
        """Windows of all episodes of another dataset, the poor ones included."""
        return self._sampler_of(shaped(self._loaded(dataset), replace(self.settings, top_fraction=1.0)))

    def targets_of(self, target_returns: Iterable[float] | float | None) -> list[float | None]:
        """What ``evaluate`` asks for, in reward units, None for what the policy predicts; ConfigError as there."""
        if target_returns is None and self.settings.return_head is not None:
            return [None]
        best = self.summary.best_return if self.settings.takes_target else None
        return target_list(target_returns, best, self.summary.return_scale)

    def _steps(self, target_return: Any, acting_mode: ActingMode | None = None) -> DecisionSteps:
        """Make the steps of a policy that is asked for one return; None for the default that ``predict`` states."""
        if target_return is not None and not self.settings.takes_target:
            raise ConfigError(NO_TARGET)
        if target_return is None and self.settings.takes_target and self.settings.return_head is None:
            target_return = self.summary.best_return
        return DecisionSteps(self.decider(acting_mode), (self.observation_space, self.action_space), target_return)

    # Logger and callbacks

    def _begin_callbacks(
        self, callback: MaybeCallback, tb_log_name: str, behind: Iterable[BaseCallback] = ()
    ) -> BaseCallback:
        """Make the logger and the list of callbacks of one call of ``learn``, those ``behind`` the user's included."""
        check_callback(callback)
        if self._logger is None:
            self._logger = self._own_logger(tb_log_name)
        callbacks = callback if isinstance(callback, list) else [callback]
        parts = [part if isinstance(part, BaseCallback) else ConvertCallback(part) for part in callbacks]
        if any(isinstance(part, EvalCallback) for part in with_inner(parts)):
            raise ConfigError(
                "EvalCallback compares its environment with that of training, which there is none of; take "
                "EvaluationCallback of rltransformers.training.offline.evaluation_callback"
            )
        whole = CallbackList([*parts, *behind])
        whole.init_callback(cast(BaseAlgorithm, self))  # it has what callbacks use of a BaseAlgorithm
        return whole

    @property
    def logger(self) -> Logger:
        """The logger in use; TensorBoard and stdout according to the constructor unless ``set_logger`` was called."""
        if self._logger is None:
            self._logger = self._own_logger(self.kind)
        return self._logger

    def _own_logger(self, name: str) -> Logger:
        logger = configure_logger(self.verbose, self.tensorboard_log, name)
        if self.num_timesteps == 0:
            write_run_card(logger, self.hyperparameters())
        return logger

    @strict
    def set_logger(self, logger: Logger) -> None:
        """Use this logger from now on."""
        self._logger = logger

    def get_env(self) -> None:
        """None: there is no training environment."""

    def get_vec_normalize_env(self) -> None:
        """None: there is no training environment."""

    def __repr__(self) -> str:
        parameters = count(sum(weight.numel() for weight in self.policy.parameters()), "parameter")
        sizes = f"context {self.settings.context_length}, width {self.backbone_config.width}, {parameters}"
        first = f"{type(self).__name__}({count(self.num_timesteps, 'update')}, mode {self.settings.mode}, {sizes})"
        return first + spaces_line(self.observation_space, self.action_space)
