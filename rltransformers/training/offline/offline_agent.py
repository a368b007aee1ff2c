"""What a Decision Transformer is besides its algorithm: network and optimizer, data, logger, callbacks, checkpoints."""

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback, EvalCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.utils import configure_logger
from torch import Tensor

from rltransformers.backbone import BackboneConfig
from rltransformers.blocks.leaving import Confident
from rltransformers.core.checkpoint import File, contents_of, load_checkpoint, restore_weights, save_checkpoint
from rltransformers.core.described import count, spaces_line
from rltransformers.core.device import find_device
from rltransformers.core.errors import ConfigError
from rltransformers.core.files import check_folder
from rltransformers.core.ranges import Count, Environments, PositiveNumber, Seed, UnitInterval, WholeNumber, strict
from rltransformers.core.seeding import step_seed
from rltransformers.core.spaces import differing_spaces, space_to_json
from rltransformers.core.spec import Choice
from rltransformers.core.world import Sharing, current_sharing
from rltransformers.data import ContextSampler, Trajectories, load_trajectories
from rltransformers.data.checks import check_actions
from rltransformers.data.episode_replay import EpisodeReplay
from rltransformers.policies.decision import ActingMode, Decider, DecisionPolicy
from rltransformers.policies.observations import StateWatch
from rltransformers.policies.observed import Encoding
from rltransformers.policies.shipping import DecisionInFile, write_policy
from rltransformers.policies.steps import Acting, DecisionMachine
from rltransformers.training.interval_log import ProgressBar, check_callback, with_inner
from rltransformers.training.offline.datastore import fill_store
from rltransformers.training.offline.decision_critic import CriticLearner
from rltransformers.training.offline.decision_data import DataSummary, OnlineCounts, check_masked, training_data
from rltransformers.training.offline.decision_files import (
    describe,
    read_parts,
    replaceable,
    restore_training,
    training_tensors,
)
from rltransformers.training.offline.decision_settings import ContextLength, Settings, jitter_of
from rltransformers.training.offline.entropy_bound import EntropyBound
from rltransformers.training.offline.exits import calibrate
from rltransformers.training.offline.huggingface import HUGGINGFACE_MODEL, read_huggingface
from rltransformers.training.parameters import print_system, take_parameters, uncompiled
from rltransformers.training.runs.run_card import write_run_card


class OfflineAgent:
    """Base class of agents that learn from a dataset, with the habits of Stable-Baselines3.

    Attributes:
        kind: name of the agent in its checkpoints and logs.
        num_timesteps: updates done so far.
    """

    kind: ClassVar[str]

    def _build(
        self,
        settings: Settings,
        backbone: BackboneConfig,
        spaces: tuple[gym.Space[Any], gym.Space[Any]],
        summary: DataSummary,
        statistics: Mapping[str, tuple[Tensor, Tensor]] | None,
        device: torch.device,
        readout: Choice | None = None,
        encoder: Encoding | None = None,
        action_masks: bool = False,
    ) -> None:
        """Make the network and its optimizers, before the first update."""
        self.sharing.check(readout, settings.batch_size)
        self.settings, self.summary, self.backbone_config = settings, summary, backbone
        self.readout, self.encoder = readout, encoder or Encoding()
        self.observation_space, self.action_space = spaces
        self.device, self.seed = device, settings.seed
        self.num_timesteps = 0
        self._logger: Logger | None = None
        self._interval: dict[str, tuple[Tensor, int]] = {}  # sums and counts since the last line of the log
        self._progress = 0.0
        self._state_watch = StateWatch()
        self._action_noise = np.random.default_rng(step_seed(settings.seed, 0, "action"))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(step_seed(settings.seed, 0, "weights"))
            self.policy = DecisionPolicy(
                *spaces,
                backbone,
                return_conditioned=settings.mode == "dt",
                return_scale=summary.return_scale,
                statistics=statistics,
                readout=readout,
                encoder=self.encoder,
                action_masks=action_masks,
                return_in=settings.return_in,
                predicts_return=settings.return_head is not None,
                critic_width=None if settings.critic_options is None else settings.critic_options.width,
                stochastic=settings.stochastic,
                action_units=summary.action_units,
            ).to(device)
        self.policy.eval()
        self._online, self._replay = OnlineCounts(), cast(EpisodeReplay | None, None)
        normal = self.policy.head.normal_leaves()
        self._entropy = EntropyBound(sum(leaf.components for _, leaf in normal), device) if normal else None
        self._critic: CriticLearner | None = None
        if settings.critic is not None and settings.critic_options is not None:
            self._critic = CriticLearner(self.policy, settings.critic, settings.critic_options, summary)
        self._optimizer = torch.optim.AdamW(
            self.policy.actor_parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
        )
        if settings.acting == "compiled":
            self.policy.machine_code = DecisionMachine()

    @cached_property
    def sharing(self) -> Sharing:
        """The processes that train this agent, as ``rltransformers.core.world.join`` found them."""
        return current_sharing()

    @property
    def learning_rate(self) -> float:
        """That of AdamW after the warm-up; another one holds from the next update on.

        Raises:
            ConfigError: when it is set to something else.
        """
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

    def decider(self, mode: ActingMode | None = None) -> Decider:
        """How the trained policy acts, in the model's acting mode or the one given; holds no state of its own."""
        settings = self.settings
        return Decider(
            self.policy,
            settings.context_length,
            mode or settings.acting_mode,
            settings.discount,
            settings.delayed_reward,
            jitter_of(settings.critic_options, self.summary.spread),
            self.summary.range_to_go,
        )

    # Data

    def _attach(self, data: Trajectories | None, tensorboard_log: str | os.PathLike[str] | None, verbose: int) -> None:
        """Take the data to learn from, which the settings have shaped, and prepare the log."""
        if data is not None and self.policy.masks:
            check_masked(data)
        self._sampler = None if data is None else self._sampler_of(data)
        leads = self.sharing.is_leader
        if tensorboard_log is not None:
            check_folder(tensorboard_log, "tensorboard_log")
        self.tensorboard_log = None if tensorboard_log is None or not leads else os.fspath(tensorboard_log)
        self.verbose = verbose if leads else 0

    def _sampler_of(self, data: Trajectories) -> ContextSampler:
        """Draw windows of training from data that the settings have shaped."""
        settings = self.settings
        return ContextSampler(
            data, settings.context_length, discount=settings.discount, whole_episodes=settings.whole_episodes
        )

    def _data_of(self, dataset: Any) -> Trajectories | None:
        """Load the dataset to go on learning from; None for none.

        Raises:
            ConfigError: for other spaces than those of the model.
            DataError: for what is no dataset, or an action outside the action space of the model.
        """
        if dataset is None:
            return None
        data = training_data(load_trajectories(dataset), self.settings)
        for role, ours, theirs in differing_spaces(
            (self.observation_space, self.action_space), (data.observation_space, data.action_space)
        ):
            raise ConfigError(f"the {role} space of the dataset ({theirs}) is not the one of the model ({ours})")
        check_actions(data, self.action_space)
        return data

    def _needed_sampler(self, purpose: str, way_out: str) -> ContextSampler:
        """Return the sampler of the dataset; raise ConfigError where the model was loaded without one."""
        if self._sampler is None:
            raise ConfigError(f"this model has no {purpose}; {way_out}")
        return self._sampler

    def _fill_store(self, sampler: ContextSampler) -> None:
        fill_store(self.policy, sampler, step_seed(self.seed, self.num_timesteps, "datastore"), self.device)

    def build_datastore(self) -> Self:
        """Fill the store of the readout with features of the dataset under today's weights, and the recorded actions.

        ``learn`` does so, too: every ``refresh`` updates, and for "knn" at its end.

        Raises:
            ConfigError: when the model has no readout, or was loaded without a dataset.
        """
        if self.readout is None:
            raise ConfigError('this model has no readout to fill; give policy_kwargs={"readout": "knn"} or "spalm"')
        self._fill_store(self._needed_sampler("dataset to read", f"give one to {self.kind}.load(path, dataset=...)"))
        return self

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
            ConfigError: the depth of the backbone is another one, or there is no dataset.
        """
        leaving = self.policy.backbone.halt
        if not isinstance(leaving, Confident):
            raise ConfigError(f"only depth 'calm' has a threshold, not {self.backbone_config.choices.depth.name!r}")
        if dataset is not None:
            sampler = self._sampler_of(training_data(load_trajectories(dataset), self.settings))
        else:
            sampler = self._needed_sampler("dataset to calibrate on", "pass calibrate_exits(dataset=...)")
        generator = torch.Generator().manual_seed(step_seed(self.seed, self.num_timesteps, "batch"))
        batch = sampler.sample(windows, generator).to(self.device)
        return calibrate(self.policy, leaving, batch, bound, error, candidates)

    # Logger and callbacks

    def _begin_callbacks(
        self, callback: MaybeCallback, tb_log_name: str, progress_bar: bool, total_timesteps: int
    ) -> BaseCallback:
        """Make the logger and the list of callbacks of one call of ``learn``.

        Raises:
            ConfigError: for an ``EvalCallback``.
        """
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
        if progress_bar:
            parts.append(ProgressBar(total_timesteps))
        whole = CallbackList(parts)
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

    # Files

    def hyperparameters(self) -> dict[str, Any]:
        """Kind and settings of the agent as JSON values, as TensorBoard shows them."""
        return {"agent": self.kind} | describe(self)

    @strict
    def export(
        self,
        path: str | os.PathLike[str],
        *,
        batch: Environments | None = None,
        acting_mode: ActingMode | None = None,
    ) -> Path:
        """Write the policy to a file that runs without this package: ``.pt2`` for torch, ``.onnx`` for ONNX runtimes.

        The file takes raw observations, rewards and target returns, and gives actions as the environment takes them,
        and the other fields of ``PolicyOutput`` beside them. The policy itself stays as it is. Returns the path. It
        takes up to a minute, of which a line tells where ``verbose`` is not 0.

        Args:
            path: the ending says which kind of file.
            batch: the number of environments that the file is for; None for any.
            acting_mode: another one than the model's; the file acts so, whatever the length of an episode. A model
                with "recompute", which runs its context anew in every step, needs one: "refresh" or "banded".

        Raises:
            ConfigError: for another ending, and for what a file of that kind cannot express.
            MissingExtraError: for ONNX without its packages.
        """
        step = DecisionInFile(self.decider(acting_mode), self.summary.best_return)
        return write_policy(step, path, batch, self.observation_space, self.action_space, self.verbose)

    @strict
    def save(self, path: File) -> None:
        """Write one checkpoint file with everything but the dataset; ".zip" is added to a name without extension.

        The episodes that ``learn_online`` learns from are in it. Of several processes the first one writes it.

        Args:
            path: a file that is open for bytes stays open.
        """
        if self.sharing.is_leader:
            spaces = {kind: space_to_json(getattr(self, kind)) for kind in ("observation_space", "action_space")}
            save_checkpoint(path, self.kind, describe(self) | spaces, training_tensors(self))

    def get_parameters(self) -> dict[str, Any]:
        """State dictionaries of what learns, by name: "policy" and "optimizer"."""
        return {name: part.state_dict() for name, part in self._learning().items()}

    def _learning(self) -> dict[str, torch.nn.Module | torch.optim.Optimizer]:
        return {"policy": uncompiled(self.policy), "optimizer": self._optimizer}

    @strict
    def set_parameters(self, load_path_or_dict: File | Mapping[str, Any], exact_match: bool = True) -> None:
        """Take over weights and optimizer: those of a checkpoint, or what ``get_parameters`` returned.

        With a critic its slow copies and the averaged policy are those of the checkpoint, or begin as these weights.

        Args:
            exact_match: both parts and every parameter have to be there; False takes those that are given.

        Raises:
            CheckpointError: when the file is missing, corrupt, or of another agent.
            ConfigError: for what does not fit; a part of other names or shapes changes nothing.
        """
        parts = self._learning()
        if isinstance(load_path_or_dict, Mapping):
            take_parameters(parts, load_path_or_dict, exact_match)
            if self._critic is not None:
                self._critic.begin(uncompiled(self.policy))
            return
        tensors = load_checkpoint(load_path_or_dict, self.kind).tensors
        with contents_of(load_path_or_dict, self.kind):
            weights = {name: tensors[name] for name in parts}
        take_parameters(parts, weights, exact_match)
        if self._critic is not None:
            with contents_of(load_path_or_dict, self.kind):
                self._critic.restore(tensors["critic"])

    @classmethod
    @strict
    def from_huggingface(
        cls,
        folder: str | os.PathLike[str],
        target_return: float,
        *,
        state_mean: Any = None,
        state_std: Any = None,
        return_scale: PositiveNumber = 1000.0,
        context_length: ContextLength = 20,
        acting_mode: ActingMode = "recompute",
        environment: str | None = None,
        dataset: Any = None,
        tensorboard_log: str | os.PathLike[str] | None = None,
        verbose: WholeNumber = 0,
        seed: Seed = 0,
        device: torch.device | str = "auto",
    ) -> Self:
        """The model of a folder that ``transformers.DecisionTransformerModel.save_pretrained`` wrote.

        Actions equal those of the published way to act, which computes the newest ``context_length`` steps anew for
        every decision, to the rounding of floats. In the acting mode "refresh", faster and the one that can be
        exported, they do so for the first ``context_length`` steps of an episode; later ones look back less far.
        Actions are the model's own: within [-1, 1], or any numbers if it was built without a tanh, whatever the bounds
        of the environment.

        Args:
            folder: with ``config.json`` and ``model.safetensors`` or ``pytorch_model.bin``.
            target_return: what is asked for where a call names nothing, in reward units; the model card tells.
            state_mean, state_std: statistics that observations were standardized by, as the model card lists them; None
                for a model that reads observations as they are.
            return_scale: what returns were divided by; published models use 1000.
            context_length: steps of a window, in published models 20.
            acting_mode: as for the constructor.
            environment: Gymnasium id that names the reference scores.
            dataset: to go on learning from, with the constructor's defaults.

        Raises:
            CheckpointError: a file is missing, damaged or of another model.
            ConfigError: the model needs what there is not here, or an argument does not fit it.
            MissingExtraError: ``model.safetensors`` without the extra ``huggingface``.
        """
        model = read_huggingface(folder, context_length, state_mean, state_std)
        self = cls.__new__(cls)
        self._build(
            Settings(
                context_length=context_length,
                normalize_observations=model.statistics is not None,
                acting_mode=acting_mode,
                seed=seed,
            ),
            model.backbone,
            model.spaces,
            DataSummary(return_scale, target_return, environment),
            model.statistics,
            find_device(device),
        )
        with contents_of(folder, HUGGINGFACE_MODEL):
            restore_weights(self.policy, model.weights, "the model")
        self._attach(self._data_of(dataset), tensorboard_log, verbose)
        return self

    @classmethod
    @strict
    def load(
        cls,
        path: File,
        dataset: Any = None,
        *,
        acting: Acting | None = None,
        tensorboard_log: str | os.PathLike[str] | None = None,
        verbose: WholeNumber = 0,
        device: torch.device | str = "auto",
        custom_objects: Mapping[str, Any] | None = None,
        print_system_info: bool = False,
        **overrides: Any,
    ) -> Self:
        """The saved model; with the dataset it was trained on, ``learn`` goes on as if it had never stopped.

        So do the sampled actions of ``predict``; with another ``seed`` they follow from that.

        Args:
            path: file, with or without ``.zip``, or one that is open for bytes.
            acting: takes the place of the stored setting.
            custom_objects: settings that replace the stored ones, as Stable-Baselines3 takes them; what it pickles and
                files of this package do not hold has nothing to replace.
            print_system_info: print this machine and its versions, and the version that wrote the file.
            **overrides: settings that replace the stored ones: ``learning_rate``, ``weight_decay``, ``warmup_steps``,
                ``decay_steps``, ``batch_size``, ``max_grad_norm``, ``top_fraction``, ``whole_episodes``, ``expectile``,
                ``acting_mode``, ``seed``. With others of the rest the weights would mean something else.

        Raises:
            CheckpointError: for a file that is missing, corrupt, or of another agent.
            ConfigError: for a dataset with other spaces, and for a setting that cannot be replaced, or not by this.
            DataError: for a dataset with actions outside the action space of the model.
        """
        device = find_device(device)
        saved = load_checkpoint(path, cls.kind, map_location=device)
        if print_system_info:
            print_system(saved.code_version)
        replaced = replaceable(custom_objects, overrides, acting)
        self = cls.__new__(cls)
        with contents_of(path, cls.kind, alone=not replaced):
            self._build(**read_parts(saved, replaced), device=device)
            restore_training(self, saved.tensors, noise="seed" not in replaced)
        self._attach(self._data_of(dataset), tensorboard_log, verbose)
        return self
