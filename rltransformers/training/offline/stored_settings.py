"""Settings of a Decision Transformer from its file, those of files from before some of them included."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from rltransformers.core.errors import CheckpointError, ConfigError
from rltransformers.core.ranges import check
from rltransformers.policies.several_modes import ActionHeadOptions
from rltransformers.training.offline.settings import AdvantageOptions, CriticOptions, Settings, read_options

REPLACEABLE = (
    *("learning_rate", "weight_decay", "warmup_steps", "decay_steps", "batch_size", "max_grad_norm", "top_fraction"),
    *("whole_episodes", "expectile", "acting", "acting_mode", "decide_every", "seed"),
)
"""Settings that ``load`` may replace: with others of the rest the weights would mean something else."""


def check_replaceable(names: Iterable[str]) -> None:
    """Raise ConfigError for a setting among ``names`` that belongs to the weights."""
    for name in names:
        if name in Settings.__dataclass_fields__ and name not in REPLACEABLE:
            raise ConfigError(
                f"{name} belongs to what the file has learned, and load cannot replace it; it replaces "
                f"{', '.join(REPLACEABLE)}"
            )


def read_settings(stored: Any, tensors: Mapping[str, Any]) -> tuple[Settings, Tensor | None]:
    """Settings of a file with these tensors, and room for the limits of a return head [L]; None without one.

    Raises:
        CheckpointError: for a return head of an earlier version, which nothing limits.
        ConfigError, KeyError: for settings that are missing or impossible.
    """
    values: dict[str, Any] = {"chunk": 1, "decide_every": None}  # files from before chunks lack them
    values |= {"optimizer": "adamw", "optimizer_kwargs": {}}  # and those from before other optimizers these
    values |= check(stored, Mapping[str, Any], "settings")
    if "stochastic" in values:  # files from before action_head
        normal = check(values.pop("stochastic"), bool, "stochastic")
        values |= {"action_head": "gaussian" if normal else "deterministic", "action_head_options": {}}
        values["advantage_options"] = None
    if "decay" not in tensors and values.get("decay_steps", 0) is None:  # files from before None let the rate fall
        values["decay_steps"] = 0
    values = {field.name: values.pop(field.name) for field in fields(Settings)} | values  # all of them, no other
    if values["return_head"] is None:  # files from before the default was raised hold another one
        values["expectile"] = Settings.expectile
    kinds: dict[str, Any] = {"critic_options": CriticOptions, "advantage_options": AdvantageOptions}
    for name, kind in kinds.items():
        if values[name] is not None:
            values[name] = read_options(kind, check(values[name], Mapping[str, Any], name), name, needed=True)
    options = check(values["action_head_options"], Mapping[str, Any], "action_head_options")
    values["action_head_options"] = ActionHeadOptions(**options)
    highest, weights = None, tensors["policy"]
    if values["return_head"] is not None:
        if "highest_to_go" not in weights:
            raise CheckpointError(
                "its return head is of an earlier version: it may read its own answers, and nothing limits them;"
                " train the model again"
            )
        highest = torch.zeros(max(check(weights["highest_to_go"], Tensor, "policy.highest_to_go").numel(), 1))
    return Settings(**values), highest
