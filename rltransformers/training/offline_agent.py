"""The habits of Stable-Baselines3 for an agent that learns from a dataset: logger, callbacks, checkpoints."""

import os
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, cast

import gymnasium as gym
import numpy as np
import torch
from annotated_types import Ge, Lt
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    ConvertCallback,
    EvalCallback,
)
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.utils import configure_logger
from torch import Tensor

from rltransformers.backbone import BackboneConfig
from rltransformers.backbone.config import without_idle
from rltransformers.core.checkpoint import (
    File,
    check_tensor,
    contents_of,
    load_checkpoint,
    restore_optimizer,
    restore_weights,
    save_checkpoint,
)
from rltransformers.core.described import count, spaces_line
from rltransformers.core.device import find_device
from rltransformers.core.errors import ConfigError, DataError, refuse_unknown
from rltransformers.core.files import check_path
from rltransformers.core.ranges import Count, Environments, PositiveNumber, Seed, WholeNumber, check, strict
from rltransformers.core.spaces import differing_spaces, space_from_json, space_to_json
from rltransformers.core.spec import Choice
from rltransformers.core.world import World, current_world
from rltransformers.data import ContextSampler, Trajectories, load_trajectories
from rltransformers.data.checks import check_actions
from rltransformers.data.episode_replay import EpisodeReplay
from rltransformers.policies.decision import ActingMode, Decider, DecisionPolicy
from rltransformers.policies.observed import Encoding, read_observation
from rltransformers.policies.readouts.catalogue import read_readout
from rltransformers.policies.shipping import DecisionInFile, write_policy
from rltransformers.policies.steps import Acting
from rltransformers.policies.stored_size import check_stored_size
from rltransformers.training.decision_critic import CriticLearner
from rltransformers.training.decision_data import DataSummary, check_masked, stored_statistics, training_data
from rltransformers.training.decision_online import OnlineCounts
from rltransformers.training.decision_settings import ContextLength, Settings, check_tokens, stored_settings
from rltransformers.training.entropy_bound import EntropyBound
from rltransformers.training.huggingface import (
    HUGGINGFACE_MODEL,
    published_settings,
    read_huggingface,
    statistics_given,
)
from rltransformers.training.interval_log import ProgressBar, check_callback, with_inner
from rltransformers.training.parameters import print_system, replaced_settings, take_parameters, uncompiled
from rltransformers.training.run_card import write_run_card

Updates = Annotated[int, Ge(0), Lt(2**63)]
REPLACEABLE = (
    *("learning_rate", "weight_decay", "warmup_steps", "decay_steps", "batch_size", "max_grad_norm", "top_fraction"),
    *("whole_episodes", "expectile", "acting", "acting_mode", "seed"),
)
"""Settings that ``load`` may replace: with others of the rest the weights would mean something else."""


class OfflineAgent:
    """Base class of agents that learn from a dataset: saving, loading, callbacks, the schedule of updates.

    Attributes:
        kind: name of the agent in its checkpoints and logs.
        num_timesteps: updates done so far.
    """

    kind: ClassVar[str]
    settings: Settings
    summary: DataSummary
    backbone_config: BackboneConfig
    readout: Choice | None
    encoder: Encoding
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    policy: DecisionPolicy
    num_timesteps: int
    _optimizer: torch.optim.Optimizer
    _critic: CriticLearner | None
    _entropy: EntropyBound | None
    _online: OnlineCounts
    _replay: EpisodeReplay | None
    _action_noise: np.random.Generator
    _interval: dict[str, tuple[Tensor, int]]  # sums and counts since the last line of the log
    _logger: Logger | None = None

    def _build(
        self,
        settings: Settings,
        backbone: BackboneConfig,
        spaces: tuple[gym.Space[Any], gym.Space[Any]],
        summary: DataSummary,
        statistics: Mapping[str, tuple[Tensor, Tensor]] | None,
        device: torch.device,
        readout: Choice | None,
        encoder: Encoding,
        action_masks: bool,
    ) -> None:
        """The model and its optimiser, before the first update."""
        raise NotImplementedError

    def decider(self, mode: ActingMode | None = None) -> Decider:
        """How the trained policy acts, in the model's acting mode or the one given."""
        raise NotImplementedError

    def _sampler_of(self, data: Trajectories) -> ContextSampler:
        """Windows of training from data that the settings have shaped."""
        settings = self.settings
        return ContextSampler(
            data,
            settings.context_length,
            discount=settings.discount,
            whole_episodes=settings.whole_episodes,
        )

    def _attach(self, data: Trajectories | None, tensorboard_log: str | os.PathLike[str] | None, verbose: int) -> None:
        """Prepare a run besides the model: data and logs."""
        if data is not None and self.policy.masks:
            check_masked(data)
        self._sampler = None if data is None else self._sampler_of(data)
        leads = self.world.leads
        check_path(tensorboard_log or "")
        self.tensorboard_log = None if tensorboard_log is None or not leads else os.fspath(tensorboard_log)
        self.verbose = verbose if leads else 0

    def _check_longest(self, data: Trajectories) -> None:
        """Raise DataError where the longest episode has more steps than a position table, before a window meets it."""
        episode = int(data.lengths.argmax())
        steps = int(data.lengths[episode])
        try:
            self.policy.backbone.check_places(torch.zeros(1, dtype=torch.long), torch.tensor([steps - 1]))
        except DataError as error:
            raise DataError(f"{data.name}: episode {episode} has {steps:,} steps: {error}") from error

    def _data_of(self, dataset: Any) -> Trajectories:
        """The dataset to go on learning from.

        Raises:
            ConfigError: for other spaces than those of the model.
            DataError: for what is no dataset, or an action outside the action space of the model.
        """
        data = training_data(load_trajectories(dataset), self.settings)
        for role, ours, theirs in differing_spaces(
            (self.observation_space, self.action_space), (data.observation_space, data.action_space)
        ):
            raise ConfigError(f"the {role} space of the dataset ({theirs}) is not the one of the model ({ours})")
        check_actions(data, self.action_space)
        return data

    @cached_property
    def world(self) -> World:
        """The processes that train this agent, as ``rltransformers.core.world.join`` found them."""
        return current_world()

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

    # Log and callbacks

    def _start_learning(
        self, callback: MaybeCallback, tb_log_name: str, progress_bar: bool, total_timesteps: int
    ) -> BaseCallback:
        check_callback(callback)
        if self._logger is None:
            self._logger = self._own_logger(tb_log_name)
        callbacks = callback if isinstance(callback, list) else [callback]
        parts = [part if isinstance(part, BaseCallback) else ConvertCallback(part) for part in callbacks]
        if any(isinstance(part, EvalCallback) for part in with_inner(parts)):
            raise ConfigError(
                "EvalCallback compares its environment with that of training, which there is none of; take "
                "EvaluationCallback of rltransformers.training.evaluation_callback"
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
        return None

    def get_vec_normalize_env(self) -> None:
        """None: there is no training environment."""
        return None

    # Checkpoints

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

    def __repr__(self) -> str:
        parameters = count(sum(each.numel() for each in self.policy.parameters()), "parameter")
        sizes = f"context {self.settings.context_length}, width {self.backbone_config.width}, {parameters}"
        first = f"{type(self).__name__}({count(self.num_timesteps, 'update')}, mode {self.settings.mode}, {sizes})"
        return first + spaces_line(self.observation_space, self.action_space)

    def hyperparameters(self) -> dict[str, Any]:
        """Kind and settings of the agent as JSON values, as TensorBoard shows them."""
        return {"agent": self.kind} | self._settings()

    def _settings(self) -> dict[str, Any]:
        """Settings of the agent as JSON values."""
        return {
            "settings": asdict(self.settings),
            "summary": asdict(self.summary),
            "backbone": self.backbone_config.to_dict(),
            "readout": None if self.readout is None else self.readout.to_dict(),
            "observation": self.encoder.to_dict(),
            "action_masks": self.policy.masks,
        }

    @strict
    def save(self, path: File) -> None:
        """Write one checkpoint file with everything but the dataset; ".zip" is added to a name without extension.

        ``path`` may be a file that is open for bytes; it stays open.

        Of several processes the first one writes it.

        The episodes that ``learn_online`` learns from are in it.
        """
        if not self.world.leads:
            return
        settings = self._settings() | {
            "observation_space": space_to_json(self.observation_space),
            "action_space": space_to_json(self.action_space),
        }
        tensors = {
            "policy": uncompiled(self.policy).state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "updates": self.num_timesteps,
            "interval": self._interval,
            "generators": {"action": self._action_noise.bit_generator.state},
        }
        if self._critic is not None:
            tensors["critic"] = self._critic.tensors()
        if self._entropy is not None:
            tensors["entropy"] = self._entropy.tensors()
        if self._replay is not None:
            tensors |= {"online": asdict(self._online), "replay": self._replay.state_dict()}
        save_checkpoint(path, self.kind, settings, tensors)

    def get_parameters(self) -> dict[str, Any]:
        """State dictionaries of what learns, by name: "policy" and "optimizer"."""
        return {name: part.state_dict() for name, part in self._parts().items()}

    def _parts(self) -> dict[str, torch.nn.Module | torch.optim.Optimizer]:
        return {"policy": uncompiled(self.policy), "optimizer": self._optimizer}

    @strict
    def set_parameters(self, load_path_or_dict: File | Mapping[str, Any], exact_match: bool = True) -> None:
        """Take over weights and optimiser: those of a checkpoint, or what ``get_parameters`` returned.

        With a critic its slow copies and the averaged policy are those of the checkpoint, or begin as these weights.

        Args:
            exact_match: both parts and every parameter have to be there; False takes those that are given.

        Raises:
            CheckpointError: when the file is missing, corrupt, or of another agent.
            ConfigError: for what does not fit; a part of other names or shapes changes nothing.
        """
        if isinstance(load_path_or_dict, Mapping):
            given = dict(load_path_or_dict)
        else:
            tensors = load_checkpoint(load_path_or_dict, self.kind).tensors
            with contents_of(load_path_or_dict, self.kind):
                given = {name: tensors[name] for name in self._parts()}
        take_parameters(self._parts(), given, exact_match)
        if self._critic is None:
            return
        if isinstance(load_path_or_dict, Mapping):
            self._critic.begin(uncompiled(self.policy))
        else:
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
            state_mean, state_std: statistics that observations were standardised by, as the model card lists them; None
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
        configuration, backbone, weights = read_huggingface(folder, context_length)
        statistics = statistics_given(configuration, state_mean, state_std)
        spaces = (configuration.observation_space(), configuration.action_space())
        self = cls.__new__(cls)
        self._build(
            published_settings(context_length, acting_mode, statistics is not None, seed),
            backbone,
            spaces,
            DataSummary(return_scale, target_return, environment),
            None if statistics is None else {"": statistics},
            find_device(device),
            None,
            Encoding(),
            False,
        )
        if statistics is not None:
            weights |= {"observation_mean_0": statistics[0], "observation_deviation_0": statistics[1]}
        with contents_of(folder, HUGGINGFACE_MODEL):
            restore_weights(self.policy, weights, "the model")
        data = None
        if dataset is not None:
            data = self._data_of(dataset)
        self._attach(data, tensorboard_log, verbose)
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
        if fixed := [each.name for each in fields(Settings) if each.name in overrides and each.name not in REPLACEABLE]:
            raise ConfigError(
                f"{fixed[0]} belongs to what the file has learned, and load cannot replace it; it replaces "
                f"{', '.join(REPLACEABLE)}"
            )
        refuse_unknown(overrides, REPLACEABLE, source="load")
        replaced = replaced_settings(custom_objects, REPLACEABLE) | overrides
        if acting is not None:
            replaced["acting"] = acting
        self = cls.__new__(cls)
        with contents_of(path, cls.kind, alone=not replaced):
            parts, tensors = saved.settings, saved.tensors
            weights = check(tensors["policy"], Mapping[str, Any], "policy")
            spaces = (space_from_json(parts["observation_space"]), space_from_json(parts["action_space"]))
            settings = stored_settings(check(parts["settings"], Mapping[str, Any], "settings"))
            settings = replace(settings, **replaced)
            summary = DataSummary(**check(parts["summary"], Mapping[str, Any], "summary"))
            statistics = stored_statistics(spaces[0], weights) if settings.normalize_observations else None
            backbone = BackboneConfig.from_dict(without_idle(parts["backbone"]))
            check_tokens(backbone.tokens_per_step, settings.mode, settings.return_in)
            check_stored_size(backbone, weights)
            # Checkpoints of earlier releases have no masks, no encoders of leaves, no encoder, no readout.
            readout = read_readout(parts.get("readout"))
            encoder = read_observation(parts.get("observation", {"encoder": parts.get("encoder")}))
            masks = check(parts.get("action_masks", False), bool, "action_masks")
            self._build(settings, backbone, spaces, summary, statistics, device, readout, encoder, masks)
            restore_weights(self.policy, weights)
            restore_optimizer(self._optimizer, tensors["optimizer"])
            if self._critic is not None:
                self._critic.restore(tensors["critic"])
            if self._entropy is not None:
                self._entropy.restore(tensors["entropy"])
            if "replay" in tensors:
                self._online = OnlineCounts(**check(tensors["online"], Mapping[str, Any], "online"))
                self._replay = EpisodeReplay.restored(tensors["replay"], *spaces, summary.environment)
            if "generators" in tensors and "seed" not in replaced:  # earlier releases stored none
                action = check(tensors["generators"]["action"], Mapping[str, Any], "generators.action")
                self._action_noise.bit_generator.state = action
            self.num_timesteps = check(tensors["updates"], Updates, "updates")
            # Checkpoints of the first release have no interval.
            self._interval = check(tensors.get("interval", {}), dict[str, tuple[Tensor, Count]], "interval")
            for name, (total, _) in self._interval.items():
                check_tensor(total, f"interval.{name}", (), torch.float32)
        data = None
        if dataset is not None:
            data = self._data_of(dataset)
        self._attach(data, tensorboard_log, verbose)
        return self
