"""Content of a checkpoint of a Decision Transformer: its parts as JSON, and tensors of how far training has come."""

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rltransformers.backbone import BackboneConfig
from rltransformers.backbone.config import without_idle
from rltransformers.core.checkpoint import Checkpoint, check_tensor, restore_optimizer, restore_weights
from rltransformers.core.errors import ConfigError, refuse_unknown
from rltransformers.core.ranges import Count, check
from rltransformers.core.spaces import space_from_json
from rltransformers.data.episode_replay import EpisodeReplay
from rltransformers.policies.observed import read_observation
from rltransformers.policies.readouts.catalogue import read_readout
from rltransformers.policies.stored_size import check_stored_size
from rltransformers.training.offline.decision_data import DataSummary, OnlineCounts, stored_statistics
from rltransformers.training.offline.decision_settings import CriticOptions, Settings, Updates, check_tokens
from rltransformers.training.parameters import replaced_settings, uncompiled

if TYPE_CHECKING:
    from rltransformers.training.offline.offline_agent import OfflineAgent

REPLACEABLE = (
    *("learning_rate", "weight_decay", "warmup_steps", "decay_steps", "batch_size", "max_grad_norm", "top_fraction"),
    *("whole_episodes", "expectile", "acting", "acting_mode", "seed"),
)
"""Settings that ``load`` may replace: with others of the rest the weights would mean something else."""


def describe(agent: "OfflineAgent") -> dict[str, Any]:
    """Return what an agent is made of, but for its spaces, as JSON values."""
    return {
        "settings": asdict(agent.settings),
        "summary": asdict(agent.summary),
        "backbone": agent.backbone_config.to_dict(),
        "readout": None if agent.readout is None else agent.readout.to_dict(),
        "observation": agent.encoder.to_dict(),
        "action_masks": agent.policy.masks,
    }


def training_tensors(agent: "OfflineAgent") -> dict[str, Any]:
    """Return weights, optimizers, generators, counters and replay of an agent."""
    tensors: dict[str, Any] = {
        "policy": uncompiled(agent.policy).state_dict(),
        "optimizer": agent._optimizer.state_dict(),
        "updates": agent.num_timesteps,
        "interval": agent._interval,
        "generators": {"action": agent._action_noise.bit_generator.state},
    }
    if agent._critic is not None:
        tensors["critic"] = agent._critic.tensors()
    if agent._entropy is not None:
        tensors["entropy"] = agent._entropy.tensors()
    if agent._replay is not None:
        tensors |= {"online": asdict(agent._online), "replay": agent._replay.state_dict()}
    return tensors


def replaceable(
    custom_objects: Mapping[str, Any] | None, overrides: Mapping[str, Any], acting: str | None
) -> dict[str, Any]:
    """Return the settings that take the place of stored ones, from the arguments of ``load``.

    Raises:
        ConfigError: for an unknown one, and for one that belongs to what the weights have learned.
    """
    if fixed := [field.name for field in fields(Settings) if field.name in overrides and field.name not in REPLACEABLE]:
        raise ConfigError(
            f"{fixed[0]} belongs to what the file has learned, and load cannot replace it; it replaces "
            f"{', '.join(REPLACEABLE)}"
        )
    refuse_unknown(overrides, REPLACEABLE, source="load")
    replaced = replaced_settings(custom_objects, REPLACEABLE) | dict(overrides)
    return replaced if acting is None else replaced | {"acting": acting}


def read_parts(saved: Checkpoint, replaced: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of ``OfflineAgent._build`` from a checkpoint.

    Args:
        replaced: settings that take the place of stored ones.
    """
    stored = saved.settings
    weights = check(saved.tensors["policy"], Mapping[str, Any], "policy")
    spaces = (space_from_json(stored["observation_space"]), space_from_json(stored["action_space"]))
    values = dict(check(stored["settings"], Mapping[str, Any], "settings"))
    values = {field.name: values.pop(field.name) for field in fields(Settings)} | values  # all of them, no other
    if values["critic_options"] is not None:
        options = check(values["critic_options"], Mapping[str, Any], "critic_options")
        values["critic_options"] = CriticOptions.read(options)
    settings = replace(Settings(**values), **replaced)
    backbone = BackboneConfig.from_dict(without_idle(stored["backbone"]))
    check_tokens(backbone.tokens_per_step, settings.mode, settings.return_in)
    check_stored_size(backbone, weights)
    return {
        "settings": settings,
        "backbone": backbone,
        "spaces": spaces,
        "summary": DataSummary(**check(stored["summary"], Mapping[str, Any], "summary")),
        "statistics": stored_statistics(spaces[0], weights) if settings.normalize_observations else None,
        "readout": read_readout(stored["readout"]),
        "encoder": read_observation(stored["observation"]),
        "action_masks": check(stored["action_masks"], bool, "action_masks"),
    }


def restore_training(agent: "OfflineAgent", tensors: Mapping[str, Any], noise: bool) -> None:
    """Take on the weights and all that training has come to, from the tensors of a checkpoint.

    Args:
        noise: whether sampled actions go on as they would have.
    """
    restore_weights(agent.policy, tensors["policy"])
    restore_optimizer(agent._optimizer, tensors["optimizer"])
    if agent._critic is not None:
        agent._critic.restore(tensors["critic"])
    if agent._entropy is not None:
        agent._entropy.restore(tensors["entropy"])
    if "replay" in tensors:
        agent._online = OnlineCounts(**check(tensors["online"], Mapping[str, Any], "online"))
        spaces = agent.observation_space, agent.action_space
        agent._replay = EpisodeReplay.restored(tensors["replay"], *spaces, agent.summary.environment)
    if noise:
        state = check(tensors["generators"]["action"], Mapping[str, Any], "generators.action")
        agent._action_noise.bit_generator.state = state
    agent.num_timesteps = check(tensors["updates"], Updates, "updates")
    agent._interval = check(tensors["interval"], dict[str, tuple[Tensor, Count]], "interval")
    for name, (total, _) in agent._interval.items():
        check_tensor(total, f"interval.{name}", (), torch.float32)
