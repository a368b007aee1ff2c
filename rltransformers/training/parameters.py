"""Weights and optimizers of an agent by name, given anew, and settings that take the place of stored ones."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from stable_baselines3.common.utils import get_system_info
from torch import nn

from rltransformers import __version__
from rltransformers.core.checkpoint import File, check_optimizer, check_same, contents_of, load_checkpoint
from rltransformers.core.device import find_device
from rltransformers.core.errors import ConfigError, one_line, refuse_unknown
from rltransformers.core.ranges import check
from rltransformers.core.spaces import Space, leaf_spaces, space_from_json

ROLES = ("observation", "action")
PICKLED_BY_SB3 = (
    *("lr_schedule", "clip_range", "clip_range_vf", "exploration_schedule", "observation_space", "action_space"),
    *("policy_class", "rollout_buffer_class", "rollout_buffer_kwargs", "replay_buffer_class", "replay_buffer_kwargs"),
    *("_last_obs", "_last_original_obs", "_last_episode_starts", "ep_info_buffer", "ep_success_buffer"),
)
"""Names that ``custom_objects`` of Stable-Baselines3 replaces in its files; files of this package do not hold them."""


def uncompiled(part: Any) -> Any:
    """The module that ``torch.compile`` wrapped, whose weights go by their own names; anything else as it is."""
    return getattr(part, "_orig_mod", part)


def place_of(name: str) -> str:
    """Where a checkpoint holds the part ``name`` of an agent: "policy.optimizer" as "optimizer"."""
    return name.rpartition(".")[2]


def take_parameters(
    parts: Mapping[str, nn.Module | torch.optim.Optimizer],
    source: File | Mapping[str, Any],
    exact: bool,
    kind: str,
    spaces: tuple[Space, Space],
    device: torch.device | str = "cpu",
) -> Mapping[str, Any]:
    """Load state dictionaries into the parts of their names; what does not fit changes nothing.

    Returns ``source``, or all tensors of the checkpoint that it names.

    Args:
        source: state dictionaries by name, or a checkpoint of ``kind``.
        exact: every part is there, with every parameter.
        spaces: of the observations and actions that the parts are for.
        device: where tensors of a checkpoint are read to.

    Raises:
        CheckpointError: when the file is missing, corrupt, or of another agent.
        ConfigError: for an unknown part, a missing one, another shape, a weight that is not finite, or a checkpoint
            whose spaces have the same keys in another order.
    """
    if isinstance(source, Mapping):
        tensors = states = source
    else:
        checkpoint = load_checkpoint(source, kind, find_device(device))
        tensors = checkpoint.tensors
        with contents_of(source, kind):
            states = {name: tensors[place_of(name)] for name in parts}
            stored = [space_from_json(checkpoint.settings[f"{role}_space"]) for role in ROLES]
        for role, ours, theirs in zip(ROLES, spaces, stored, strict=True):
            _check_order(role, list(leaf_spaces(ours)), list(leaf_spaces(theirs)), kind)
    refuse_unknown(states, parts, source="parameters")
    for name, value in states.items():
        check(value, Mapping[str, Any], f"parameters.{name}")
    if exact and (missing := [name for name in parts if name not in states]):
        raise ConfigError(f"parameters lack {', '.join(missing)}; give all of them, or exact_match=False")
    changed = {name: part for name, part in parts.items() if name in states}
    for name, part in changed.items():
        state = states[name]
        with _fitting(name):
            if isinstance(part, nn.Module):
                own = part.state_dict()
                check_same(state, own if exact else {key: own[key] for key in own if key in state}, name)
                for key, _ in part.named_parameters():
                    if key in state and not torch.isfinite(state[key]).all():
                        raise ValueError(f"{key} is not finite")
            else:
                check_optimizer(part, state, name)
    for name, part in changed.items():
        with _fitting(name):
            if isinstance(part, nn.Module):
                part.load_state_dict(states[name], strict=exact)
            else:
                part.load_state_dict(states[name])
    return tensors


def _check_order(role: str, ours: list[str], theirs: list[str], kind: str) -> None:
    """Raise ConfigError for the same leaves in another order, in which their weights stand."""
    if ours != theirs and sorted(ours) == sorted(theirs):
        raise ConfigError(
            f"the weights in the file are for the {role} keys in the order {theirs}, this agent has them in the order "
            f"{ours}; {kind}.load(path, ...) makes an agent in the order of the file"
        )


@contextmanager
def _fitting(name: str) -> Iterator[None]:
    """Within the block, errors say that the part ``name`` does not fit."""
    try:
        yield
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"parameters do not fit this agent: {name}: {one_line(error)}") from error


def replaced_settings(
    custom_objects: Mapping[str, Any] | None, overrides: Mapping[str, Any], known: Collection[str]
) -> dict[str, Any]:
    """Settings that take the place of stored ones: ``overrides``, and ``custom_objects`` of Stable-Baselines3.

    ``lr_schedule`` stands for ``learning_rate``; what files of this package do not hold has nothing to replace.

    Raises:
        ConfigError: for a name that is neither a setting nor, in ``custom_objects``, one of Stable-Baselines3.
    """
    refuse_unknown(overrides, known, source="load")
    given = dict(custom_objects or {})
    refuse_unknown(given, {*known, *PICKLED_BY_SB3}, "custom_objects.")
    if "lr_schedule" in given:
        given.setdefault("learning_rate", given["lr_schedule"])
    return {name: value for name, value in given.items() if name in known} | dict(overrides)


def print_system(saved_by: str) -> None:
    """Print this machine and its versions as Stable-Baselines3 does, and the version that wrote a checkpoint."""
    print("== CURRENT SYSTEM INFO ==")
    get_system_info()
    print(f"- rltransformers: {__version__}")
    print(f"== SAVED MODEL SYSTEM INFO ==\n- rltransformers: {saved_by}")
