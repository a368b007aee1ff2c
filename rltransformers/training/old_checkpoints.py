"""Checkpoints of online agents from before actions were kept by leaf, and other old ones, in the layout of today."""

from collections.abc import Collection, Mapping
from typing import Any

import gymnasium as gym
import torch
from gymnasium import spaces
from torch import Tensor

from rltransformers.backbone import State
from rltransformers.core.ranges import check
from rltransformers.policies.action_heads import with_units
from rltransformers.policies.actor_critic import GTrXLPolicy

NAMES = {
    "action_net.weight": "action_head.linear.weight",
    "action_net.bias": "action_head.linear.bias",
    "log_std": "action_head.leaves.0.log_std",
}
"""Old name of a weight to the present one."""
SETTINGS = {"target_update": "target_update_interval", "context_length": "burn_in"}
"""Old name of a setting to the present one."""
ADDED = {"scale_rewards": False}
"""Settings that files of earlier releases do not have, with what those releases did."""


def with_present_names(stored: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Stored settings under the names of today, where ``names`` are those of the agent, and those that were added."""
    added = {name: value for name, value in ADDED.items() if name in names}
    renamed = {old: new for old, new in SETTINGS.items() if new in names and old not in names}
    return added | {renamed.get(name, name): value for name, value in stored.items()}


def in_present_layout(tensors: dict[str, Any], policy: GTrXLPolicy) -> dict[str, Any]:
    """The tensors of a ``GTrXLPPO`` checkpoint in the layout of today, for an agent with this policy.

    Then weights had other names, the moments of ``log_std`` came first, and actions were one tensor: classes counted
    from 0, bits and flattened Boxes as float32; observed integers of 16 and 32 bits had 64. Before that
    memories of acting were no rings. Later than that a learning rate could end below 0, which counts as 0, and actions
    of a Box were in the units of the environment. Tensors of today are returned as they are.
    """
    acting, optimizer = _in_rings(tensors["acting"], policy), _from_zero(tensors["optimizer"])
    tensors = tensors | {"acting": acting, "optimizer": optimizer}
    weights = check(tensors["policy"], Mapping[str, Any], "policy")
    if "action_net.weight" not in weights:
        networks = [name for name in ("policy", "target") if isinstance(tensors.get(name), Mapping)]
        return tensors | {name: with_units(tensors[name], policy) for name in networks}
    space = policy.action_leaves[""]  # there were no nested actions
    new: dict[str, Any] = dict(tensors)
    new["policy"] = with_units({NAMES.get(name, name): value for name, value in weights.items()}, policy)
    new["acting"] = _with_actions(tensors["acting"], space, ("previous_action",))
    if tensors.get("segment") is not None:
        segment = _with_actions(tensors["segment"], space, ("previous_action", "actions"))
        observations = check(segment["observations"], Mapping[str, Tensor], "segment.observations")
        segment["observations"] = {
            path: leaf.to(policy.leaf_types.get(path, leaf.dtype)) for path, leaf in observations.items()
        }
        segment["memory"] = _with_actions(segment["memory"], space, ("previous_action",))
        new["segment"] = segment
    if "log_std" in weights:
        names = [name for name, _ in policy.named_parameters()]
        optimizer = check(tensors["optimizer"], Mapping[str, Any], "optimizer")
        state = check(optimizer["state"], Mapping[int, Any], "optimizer.state")
        moments = {_place(index, names.index(NAMES["log_std"])): moment for index, moment in state.items()}
        new["optimizer"] = {**optimizer, "state": dict(sorted(moments.items()))}
    return new


def _in_rings(acting: Any, policy: GTrXLPolicy) -> dict[str, Any]:
    """Memories of acting; they were rows with their keys, oldest first."""
    held = dict(check(acting, Mapping[str, Any], "acting"))
    for name, part in zip(("actor", "critic"), policy.backbones(), strict=False):
        rows = held.get(name)
        if isinstance(rows, Mapping) and "clock" not in rows and any(key.endswith(".keys") for key in rows):
            held[name] = part.backbone.in_rings(State(dict(rows))).tensors
    return held


def _from_zero(optimizer: Any) -> dict[str, Any]:
    """An optimiser whose learning rate is not below 0."""
    held = dict(check(optimizer, Mapping[str, Any], "optimizer"))
    groups = check(held["param_groups"], list[Mapping[str, Any]], "optimizer.param_groups")
    return held | {
        "param_groups": [
            {**group, "lr": 0.0} if isinstance(rate := group.get("lr"), float) and rate < 0.0 else group
            for group in groups
        ]
    }


def _place(index: int, log_std: int) -> int:
    """Present place of the parameter that was at ``index`` when log_std came first; the others keep their order."""
    return log_std if index == 0 else index - 1 if index <= log_std else index


def _with_actions(tensors: Any, space: gym.Space[Any], names: tuple[str, ...]) -> dict[str, Any]:
    held = check(tensors, Mapping[str, Any], "acting")
    return dict(held) | {name: {"": _action(held[name], space)} for name in names}


def _action(value: Tensor, space: gym.Space[Any]) -> Tensor:
    if isinstance(space, spaces.Box):
        return value.reshape(*value.shape[:-1], *space.shape)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return value + value.new_tensor(space.start)
    return value.to(torch.int8)
