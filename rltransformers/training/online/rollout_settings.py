"""Settings of an online agent that must agree with each other, with its spaces and with the machine."""

from typing import Any

import gymnasium as gym
import torch
from gymnasium import spaces

from rltransformers.core.device import check_memory
from rltransformers.core.errors import ConfigError
from rltransformers.core.spaces import leaf_spaces
from rltransformers.data.rollout import bytes_of, observation_layout
from rltransformers.policies.observations import tree_space

Space = gym.Space[Any]
BYTES_BESIDE = 24
"""Of a step beside its observation: action, reward, value, log-probability, last value, flags; at least."""
BYTES_OF_TENSORS = 400
"""Of a step of all environments, for what torch keeps of a handful of tensors beside their numbers."""


def check_barrier(barrier_coef: Any, action_space: Space) -> None:
    """Raise ConfigError unless a log barrier, where there is one, is about actions that can be counted."""
    boxes = [leaf for leaf in leaf_spaces(action_space).values() if isinstance(leaf, spaces.Box)]
    if barrier_coef != 0.0 and boxes:
        raise ConfigError("barrier_coef is for actions that can be counted; with a Box of actions use ent_coef")


def check_batch_size(batch_size: int | None, n_steps: int) -> None:
    """Raise ConfigError unless minibatches hold whole segments."""
    if batch_size is not None and batch_size % n_steps:
        nearest = max(n_steps, round(batch_size / n_steps) * n_steps)
        raise ConfigError(
            f"batch_size ({batch_size}) must be a multiple of n_steps ({n_steps}), because segments are "
            f"kept whole; nearest that is: {nearest}"
        )


def check_advantages(normalize_advantage: bool, least_advantage_std: float, steps: int) -> None:
    """Raise ConfigError unless the advantages of a rollout of so many steps can be normalized as asked."""
    if least_advantage_std and not normalize_advantage:
        raise ConfigError(
            f"least_advantage_std={least_advantage_std} bounds what normalized advantages are divided by, but "
            "normalize_advantage is False; set normalize_advantage=True, or least_advantage_std=0"
        )
    if steps == 1 and normalize_advantage:
        raise ConfigError("one step of one environment has no advantages to normalize; raise n_steps or turn it off")


def check_room(n_envs: int, n_steps: int, observation_space: Space, device: torch.device) -> None:
    """Raise ConfigError unless a rollout, observations and what lies beside them, fits into memory."""
    step = bytes_of(observation_layout(tree_space(observation_space)))
    needed = n_steps * (n_envs * (step + BYTES_BESIDE) + BYTES_OF_TENSORS)
    what = f"n_steps ({n_steps}) steps of {n_envs} environments need"
    check_memory(needed, what, "lower n_steps or the number of environments", device)
