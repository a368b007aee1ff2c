"""What a Decision Transformer is made of: network, optimizers, data, and the files that hold them."""

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from stable_baselines3.common.logger import Logger
from torch import Tensor

from rltransformers.backbone import BackboneConfig
from rltransformers.core.action_masks import ACTION_MASK
from rltransformers.core.checkpoint import (
    Checkpoint,
    File,
    check_tensor,
    contents_of,
    load_checkpoint,
    restore_optimizer,
    restore_weights,
    save_checkpoint,
)
from rltransformers.core.device import find_device, forked_rng
from rltransformers.core.files import check_folder
from rltransformers.core.ranges import Count, Environments, PositiveNumber, Seed, WholeNumber, check, strict
from rltransformers.core.seeding import step_seed
from rltransformers.core.spaces import (
    Space,
    leaf_spaces,
    normalized_leaves,
    space_from_json,
    space_to_json,
)
from rltransformers.core.spec import Choice
from rltransformers.core.world import Sharing, current_sharing
from rltransformers.data import ContextSampler, Trajectories
from rltransformers.data.episode_replay import EpisodeReplay
from rltransformers.policies.decider import ActingMode, Decider
from rltransformers.policies.decision_network import DecisionPolicy
from rltransformers.policies.observations import StateWatch
from rltransformers.policies.observed import Encoding, read_observation
from rltransformers.policies.optimizers import decay_groups, make_optimizer
from rltransformers.policies.readouts.catalogue import read_readout
from rltransformers.policies.several_modes import box_leaf
from rltransformers.policies.shipping import DecisionInFile, write_policy
from rltransformers.policies.steps import DecisionMachine
from rltransformers.policies.stored_size import check_stored_size
from rltransformers.training.offline.advantage import AdvantageLearner
from rltransformers.training.offline.data import (
    DataParts,
    DataSummary,
    HeldOut,
    OnlineCounts,
    check_masked,
    data_parts,
    highest_to_go,
    load_alike,
)
from rltransformers.training.offline.huggingface import HUGGINGFACE_MODEL, read_huggingface
from rltransformers.training.offline.loss import CriticLearner, EntropyBound
from rltransformers.training.offline.one_step import OneStep
from rltransformers.training.offline.settings import (
    REPLACEABLE,
    USUAL_CONTEXT,
    ContextLength,
    Settings,
    Updates,
    check_replaceable,
    check_tokens,
    jitter_of,
    read_settings,
)
from rltransformers.training.offline.validation import ValidationResult
from rltransformers.training.parameters import print_system, replaced_settings, take_parameters, uncompiled


class StoredDecisionTransformer:
    """Network, optimizers and data of a Decision Transformer, and their way into files and back.

    Attributes:
        kind: name of the agent in its checkpoints and logs.
        num_timesteps: updates done so far.
    """

    kind: ClassVar[str]

    def _build(
        self,
        settings: Settings,
        backbone: BackboneConfig,
        spaces: tuple[Space, Space],
        summary: DataSummary,
        statistics: Mapping[str, tuple[Tensor, Tensor]] | None,
        device: torch.device,
        readout: Choice | None = None,
        encoder: Encoding | None = None,
        action_masks: bool = False,
        highest: Tensor | None = None,
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
        with forked_rng():
            torch.manual_seed(step_seed(settings.seed, 0, "weights"))
            parts: dict[str, Any] = {
                "statistics": statistics,
                "encoder": self.encoder,
                "action_masks": action_masks,
                "action_units": summary.action_units,
            }
            advantage = settings.advantage_options
            self.policy = DecisionPolicy(
                *spaces,
                backbone,
                return_conditioned=settings.mode != "bc",
                return_scale=summary.return_scale,
                readout=readout,
                return_in=settings.return_in,
                highest_to_go=highest,
                critic_width=None if settings.critic_options is None else settings.critic_options.width,
                value_scale=summary.value_scale,
                box=box_leaf(settings.action_head, settings.action_head_options, spaces[1], settings.chunk),
                chunk=settings.chunk,
                decide_every=settings.decide_every,
                advantage_bins=None if advantage is None else advantage.bins,
                **parts,
            ).to(device)
            self._advantage: AdvantageLearner | None = None
            if advantage is not None:
                histories = replace(backbone, tokens_per_step=2)
                trunk = partial(DecisionPolicy, *spaces, histories, return_conditioned=False, **parts)
                self._advantage = AdvantageLearner(trunk, settings, advantage, summary.range_to_go, device)
        self.policy.eval()
        self._online, self._replay = OnlineCounts(), cast(EpisodeReplay | None, None)
        self._decay = 0, 0  # first and last update of the newest ``learn``, where no setting says them
        self._held_out: HeldOut | None = None
        dense = self.policy.head.dense_boxes()
        self._entropy = EntropyBound(sum(leaf.components for _, leaf in dense), device) if dense else None
        self._critic: CriticLearner | None = None
        if settings.critic is not None and settings.critic_options is not None:
            self._critic = CriticLearner(self.policy, settings.critic, settings.critic_options, summary)
        groups = decay_groups(self.policy, self.policy.actor_parameters())
        options = {"weight_decay": settings.weight_decay, "fused": True} | settings.optimizer_kwargs
        self._optimizer = make_optimizer(settings.optimizer, self.policy, groups, settings.learning_rate, options)
        self._compile()

    def _compile(self) -> None:
        """Let the policy act as machine code where the settings say so; it keeps none in copies and files."""
        self.policy.machine_code = DecisionMachine() if self.settings.acting == "compiled" else None

    def __setstate__(self, state: dict[str, Any]) -> None:  # of a copy
        vars(self).update(state)
        self._compile()

    @cached_property
    def sharing(self) -> Sharing:
        """The processes that train this agent, as ``rltransformers.core.world.join`` found them."""
        return current_sharing()

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

    def _attach(self, parts: DataParts | None, tensorboard_log: str | os.PathLike[str] | None, verbose: int) -> None:
        """Take the data to learn from and to validate on, which the settings have shaped, and prepare the log."""
        self._sampler, self._validation_sampler = cast(ContextSampler | None, None), cast(ContextSampler | None, None)
        self._one_step: OneStep | None = None
        self.newest_validation: ValidationResult | None = None
        if parts is not None:
            self._sampler, self._held_out = self._sampler_of(parts.training), parts.held_out
            if parts.validation is not None:
                self._validation_sampler = self._sampler_of(parts.validation)
        leads = self.sharing.is_leader
        if tensorboard_log is not None:
            check_folder(tensorboard_log, "tensorboard_log")
        self.tensorboard_log = None if tensorboard_log is None or not leads else os.fspath(tensorboard_log)
        self.verbose = verbose if leads else 0

    def _windows_of(self, data: Trajectories) -> ContextSampler:
        """Windows of some episodes, with returns-to-go."""
        settings = self.settings
        return ContextSampler(
            data,
            settings.context_length,
            discount=settings.discount,
            whole_episodes=settings.whole_episodes,
            chunk=settings.chunk,
        )

    def _sampler_of(self, data: Trajectories) -> ContextSampler:
        """Windows of some episodes, with the bins of their advantages where the policy reads these."""
        if self.policy.masks:
            check_masked(data)
        windows = self._windows_of(data)
        return windows if self._advantage is None else windows.with_bins(self._advantage.bins(windows))

    def _raise_limits(self, data: Trajectories) -> None:
        """Let the return head predict returns as large as those of these episodes, too."""
        if self.policy.return_head is not None:
            self.policy.raise_limits(highest_to_go(data, self.settings.discount))

    def _data_of(self, dataset: Any) -> DataParts | None:
        """Load the dataset to go on learning from, in the spaces of the model; None for none."""
        if dataset is None:
            return None
        parts = data_parts(self._loaded(dataset), self.settings, self._held_out)
        self._raise_limits(parts.training)
        return parts

    def _loaded(self, dataset: Any) -> Trajectories:
        """Episodes in the spaces of the model."""
        spaces = self.observation_space, self.action_space
        return load_alike(dataset, spaces, self.summary.names, masked=ACTION_MASK in self.policy.observation_leaves)

    # Files

    def hyperparameters(self) -> dict[str, Any]:
        """Kind and settings of the agent as JSON values, as TensorBoard shows them."""
        return {"agent": self.kind} | self._description()

    def _description(self) -> dict[str, Any]:
        """What the agent is made of, but for its spaces, as JSON values."""
        return {
            "settings": asdict(self.settings),
            "summary": asdict(self.summary),
            "backbone": self.backbone_config.to_dict(),
            "readout": None if self.readout is None else self.readout.to_dict(),
            "observation": self.encoder.to_dict(),
            "action_masks": self.policy.masks,
        }

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
        and the other fields of ``PolicyOutput``. It takes up to a minute. Returns the path.

        Args:
            path: the ending says which kind of file.
            batch: the number of environments that the file is for; None for any.
            acting_mode: another one than the model's; the file acts so, whatever the length of an episode. A model
                with "recompute", which runs its context anew in every step, needs one: "refresh" or "banded".

        Raises:
            ConfigError: for another ending, and for what a file of that kind cannot express.
            MissingExtraError: for ONNX without its packages.
        """
        step = DecisionInFile(self.decider(acting_mode), self.summary.best_return, self.summary.names)
        return write_policy(step, path, batch, self.observation_space, self.action_space, self.verbose)

    @strict
    def save(self, path: File) -> None:
        """Write one checkpoint file with everything but the dataset, episodes of ``learn_online`` included.

        Args:
            path: ".zip" is added to a name without extension; a file that is open for bytes stays open.
        """
        if not self.sharing.is_leader:
            return
        tensors = self.get_parameters() | {
            "updates": self.num_timesteps,
            "decay": self._decay,
            "interval": self._interval,
            "generators": {"action": self._action_noise.bit_generator.state},
        }
        tensors |= {name: part.tensors() for name, part in self._learned_beside().items()}
        if self._replay is not None:
            tensors |= {"online": asdict(self._online), "replay": self._replay.state_dict()}
        if self._held_out is not None:
            tensors["held_out"] = asdict(self._held_out)
        spaces = {kind: space_to_json(getattr(self, kind)) for kind in ("observation_space", "action_space")}
        save_checkpoint(path, self.kind, self._description() | spaces, tensors)

    def _learned_beside(self) -> dict[str, CriticLearner | AdvantageLearner | EntropyBound]:
        """What learns beside the policy, by its name in a file."""
        parts = {"critic": self._critic, "advantage": self._advantage, "entropy": self._entropy}
        return {name: part for name, part in parts.items() if part is not None}

    def get_parameters(self) -> dict[str, Any]:
        """State dictionaries of what learns, by name: "policy" and "optimizer"."""
        return {name: part.state_dict() for name, part in self._learned_parts().items()}

    def _learned_parts(self) -> dict[str, torch.nn.Module | torch.optim.Optimizer]:
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
        tensors = take_parameters(
            self._learned_parts(),
            load_path_or_dict,
            exact_match,
            self.kind,
            (self.observation_space, self.action_space),
        )
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
        context_length: ContextLength = USUAL_CONTEXT,
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
        exported, they do so for the first ``context_length`` steps of an episode. Actions are within [-1, 1], or any
        numbers if the model was built without a tanh, whatever the bounds of the environment.

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
        tensorboard_log: str | os.PathLike[str] | None = None,
        verbose: WholeNumber = 0,
        device: torch.device | str = "auto",
        custom_objects: Mapping[str, Any] | None = None,
        print_system_info: bool = False,
        **overrides: Any,
    ) -> Self:
        """The saved model; with the dataset it was trained on, ``learn`` goes on as if it had never stopped.

        Args:
            path: file, with or without ``.zip``, or one that is open for bytes.
            custom_objects: settings that replace the stored ones, as Stable-Baselines3 takes them; what it pickles and
                files of this package do not hold has nothing to replace.
            print_system_info: print this machine and its versions, and the version that wrote the file.
            **overrides: settings that replace the stored ones: ``learning_rate``, ``weight_decay``, ``warmup_steps``,
                ``decay_steps``, ``batch_size``, ``max_grad_norm``, ``top_fraction``, ``whole_episodes``, ``expectile``,
                ``acting``, ``acting_mode``, ``decide_every``, ``seed``. With others the weights would mean something
                else.

        Raises:
            CheckpointError: for a file that is missing, corrupt, or of another agent.
            ConfigError: for a dataset with other spaces, and for a setting that cannot be replaced, or not by this.
            DataError: for a dataset with actions outside the action space of the model.
        """
        device = find_device(device)
        saved = load_checkpoint(path, cls.kind, map_location=device)
        if print_system_info:
            print_system(saved.code_version)
        check_replaceable(overrides)
        replaced = replaced_settings(custom_objects, overrides, REPLACEABLE)
        self = cls.__new__(cls)
        with contents_of(path, cls.kind, alone=not replaced):
            self._build_stored(saved, replaced, device)
            self._restore(saved.tensors, noise="seed" not in replaced)
        self._attach(self._data_of(dataset), tensorboard_log, verbose)
        return self

    def _build_stored(self, saved: Checkpoint, replaced: Mapping[str, Any], device: torch.device) -> None:
        """Build the agent that a checkpoint describes, with new weights and with the ``replaced`` settings."""
        stored, weights = saved.settings, check(saved.tensors["policy"], Mapping[str, Any], "policy")
        spaces = (space_from_json(stored["observation_space"]), space_from_json(stored["action_space"]))
        settings = replace(read_settings(stored["settings"]), **replaced)
        backbone = BackboneConfig.from_dict(stored["backbone"])
        check_tokens(backbone.tokens_per_step, settings.mode, settings.return_in)
        check_stored_size(backbone, weights)
        highest = None if settings.return_head is None else torch.zeros(len(weights["highest_to_go"]))
        statistics = None
        if settings.normalize_observations:  # of any value: the weights hold them
            leaves = leaf_spaces(spaces[0])
            shapes = {path: leaves[path].shape or () for path in normalized_leaves(spaces[0])}
            statistics = {path: (torch.zeros(shape), torch.ones(shape)) for path, shape in shapes.items()}
        self._build(
            settings,
            backbone,
            spaces,
            DataSummary(**check(stored["summary"], Mapping[str, Any], "summary")),
            statistics,
            device,
            read_readout(stored["readout"]),
            read_observation(stored["observation"]),
            check(stored["action_masks"], bool, "action_masks"),
            highest,
        )

    def _restore(self, tensors: Mapping[str, Any], noise: bool) -> None:
        """Take on weights and what training has come to; ``noise``: sampled actions go on as they would have."""
        restore_weights(self.policy, tensors["policy"])
        restore_optimizer(self._optimizer, tensors["optimizer"])
        for name, part in self._learned_beside().items():
            part.restore(tensors[name])
        if "held_out" in tensors:
            self._held_out = HeldOut.restored(tensors["held_out"], self.settings.validation)
        if "replay" in tensors:
            self._online = OnlineCounts(**check(tensors["online"], Mapping[str, Any], "online"))
            spaces = self.observation_space, self.action_space
            self._replay = EpisodeReplay.restored(tensors["replay"], *spaces, self.summary.environment)
        if noise:
            state = check(tensors["generators"]["action"], Mapping[str, Any], "generators.action")
            self._action_noise.bit_generator.state = state
        self.num_timesteps = check(tensors["updates"], Updates, "updates")
        self._decay = check(tensors["decay"], tuple[Updates, Updates], "decay")
        self._interval = check(tensors["interval"], dict[str, tuple[Tensor, Count]], "interval")
        for name, (total, _) in self._interval.items():
            check_tensor(total, f"interval.{name}", (), torch.float32)
