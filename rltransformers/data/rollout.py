"""Steps of all environments between two updates, as a whole segment per environment. Axes: E environments, T steps."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from gymnasium import spaces
from jaxtyping import Bool, Float
from torch import Tensor

from rltransformers.core.spaces import Space, leaf_spaces, stored_dtype
from rltransformers.core.values import Array, torch_type
from rltransformers.core.world import rows_of

Leaves = dict[str, Tensor]
"""Tensors by leaf path."""


class OnDevice:
    """Base of dataclasses of tensors, tensors by leaf path, and other values."""

    def to(self, device: torch.device | str) -> Self:
        """The same on a device."""

        def moved(value: Any) -> Any:
            if isinstance(value, Tensor | OnDevice):
                return value.to(device)
            return {path: leaf.to(device) for path, leaf in value.items()} if isinstance(value, dict) else value

        return type(self)(**{name: moved(value) for name, value in vars(self).items()})


@dataclass(frozen=True)
class Segment:
    """Consecutive steps of several environments, as the policy that acted saw them, and its memory before them."""

    observations: Leaves  # [E, T, leaf shape]
    actions: Leaves  # [E, T, leaf shape], those of a Box in units of the head, not clipped
    rewards: Tensor  # [E, T], as the agent learns from them: scaled or normalized where it does that
    first: Tensor  # bool [E, T], first steps of episodes
    counts: Tensor  # bool [E, T], False for rows that are no transition (the reset row of next-step autoreset): no loss
    values: Tensor  # [E, T]
    log_probs: Tensor  # [E, T]
    advantages: Tensor  # [E, T]
    returns: Tensor  # [E, T], targets of the value function
    memory: Any  # of E rows that can be chosen and cloned, with the action and the reward before the segment

    def rows(self, index: Tensor) -> "Segment":
        """The segments of the chosen environments."""
        return Segment(**rows_of(vars(self), index))

    def numbers(self) -> dict[str, Tensor]:
        """What a loss compares with, by the names of ``Recorded``."""
        return {name: getattr(self, name) for name in ("values", "log_probs", "advantages", "returns", "counts")}

    def __len__(self) -> int:
        return int(self.rewards.shape[0])


@dataclass(frozen=True)
class Recorded:
    """What a loss compares with, of the steps of a ``Segment``."""

    values: Tensor  # [E, T]
    log_probs: Tensor  # [E, T]
    advantages: Tensor  # [E, T]
    returns: Tensor  # [E, T]
    counts: Tensor  # bool [E, T]

    def rows(self, index: Tensor) -> "Recorded":
        return Recorded(**{name: value[index] for name, value in vars(self).items()})


class RolloutBuffer:
    """Room for ``n_steps`` steps of ``n_envs`` environments in contiguous [E, T] tensors.

    Each rollout gets fresh tensors, so a finished ``Segment`` stays valid while the next one is collected.
    ``observation_spaces`` are the leaves of an observation by path.
    """

    def __init__(
        self,
        n_envs: int,
        n_steps: int,
        observation_spaces: Mapping[str, Space],
        action_space: Space,
        device: torch.device | str = "cpu",
    ) -> None:
        self.n_envs = n_envs
        self.n_steps = n_steps
        self.observation_leaves = observation_layout(observation_spaces)
        self.action_leaves = action_layout(action_space)
        self.device = torch.device(device)
        self.reset()

    def reset(self, memory: Any = None) -> None:
        """Start a rollout whose first step sees ``memory`` (one row per environment)."""
        lead = (self.n_envs, self.n_steps)
        self.position = 0
        # What acting keeps is larger: it has spare room for the steps to come.
        self.memory = None if memory is None else memory.clone()
        none, self.observations = (
            {path: torch.zeros((*axes, *shape), dtype=dtype, device=self.device) for path, (shape, dtype) in leaves}
            for axes, leaves in ((lead[:1], self.action_leaves.items()), (lead, self.observation_leaves.items()))
        )
        nothing = torch.zeros(self.n_envs, device=self.device)
        self._columns = [(path, leaf.unbind(1)) for path, leaf in self.observations.items()]
        self._actions = [none] * self.n_steps
        # One number per environment and step: columns of numpy arrays and lists cost a tenth of columns of tensors.
        self.rewards = np.zeros(lead, np.float32)
        self.first, self.episode_ends, self.truncated = (np.zeros(lead, bool) for _ in range(3))
        self.counts = np.ones(lead, bool)
        self.last_values = torch.zeros(lead, device=self.device)
        self.values, self._log_probs = [nothing] * self.n_steps, [nothing] * self.n_steps

    def take_tensors(self) -> None:
        """Store rewards and flags as tensors from now on until the next ``reset``: ``add`` then takes tensors alone."""
        for name in ("rewards", "first", "episode_ends", "truncated", "counts"):
            setattr(self, name, torch.as_tensor(getattr(self, name), device=self.device))

    def actions_so_far(self) -> Leaves:
        """Actions by path [E, T, ...] of the steps that were added."""
        return {path: torch.stack([each[path] for each in self._actions], 1) for path in self.action_leaves}

    def add(
        self,
        observations: Mapping[str, Tensor],
        actions: Leaves,
        rewards: Array,
        first: Array,
        episode_ends: Array,
        values: Tensor,
        log_probs: Tensor,
        counts: Array,
    ) -> None:
        """Store one step of every environment; ``actions``, ``values`` and ``log_probs`` are not copied."""
        t = self.position
        for path, columns in self._columns:
            columns[t].copy_(observations[path])
        self._actions[t] = actions
        self.rewards[:, t] = rewards
        self.first[:, t] = first
        self.episode_ends[:, t] = episode_ends
        self.values[t] = values
        self._log_probs[t] = log_probs
        self.counts[:, t] = counts
        self.position += 1

    def truncate(self, rows: Tensor, last_values: Tensor) -> None:
        """Mark the newest step of these environments as cut by a limit, with the value of its true last observation."""
        self.truncated[rows.cpu().numpy(), self.position - 1] = True
        self.last_values[rows, self.position - 1] = last_values

    def finish(self, bootstrap: Tensor, discount: float, trace: float) -> Segment:
        """The whole rollout with advantages; ``bootstrap`` [E] is the value of the observation after the last step."""
        values, log_probs = torch.stack(self.values, 1), torch.stack(self._log_probs, 1)
        rewards, first, counts, ends, truncated = (
            torch.as_tensor(array, device=self.device)
            for array in (self.rewards, self.first, self.counts, self.episode_ends, self.truncated)
        )
        following = torch.cat([values[:, 1:], bootstrap[:, None]], dim=1)
        after_end = torch.where(truncated, self.last_values, torch.zeros_like(following))
        next_values = torch.where(ends, after_end, following)
        advantages = generalized_advantage(rewards, values, next_values, ends | ~counts, discount, trace)
        return Segment(
            observations=self.observations,
            actions=self.actions_so_far(),
            rewards=rewards,
            first=first,
            counts=counts,
            values=values,
            log_probs=log_probs,
            advantages=advantages,
            returns=advantages + values,
            memory=self.memory,
        )


Layout = dict[str, tuple[tuple[int, ...], torch.dtype]]
"""Shape and type by leaf path."""


def observation_layout(leaves: Mapping[str, Space]) -> Layout:
    """Of one stored observation, of its leaves by path: ``stored_dtype``, images and flags as bytes."""
    return {path: (tuple(leaf.shape or ()), torch_type(stored_dtype(leaf))) for path, leaf in leaves.items()}


def action_layout(space: Space) -> Layout:
    """Of one sampled action: ``stored_dtype``, but float32 for any Box, whose samples are in units of the head."""
    leaves = leaf_spaces(space)
    boxes = {path: (tuple(leaf.shape), torch.float32) for path, leaf in leaves.items() if isinstance(leaf, spaces.Box)}
    return observation_layout(leaves) | boxes


def bytes_of(layout: Mapping[str, tuple[tuple[int, ...], Any]]) -> int:
    """Of one row: shapes and types, those of torch or of numpy, by name."""
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in layout.values())


def generalized_advantage(
    rewards: Float[Tensor, "E T"],
    values: Float[Tensor, "E T"],
    next_values: Float[Tensor, "E T"],
    episode_ends: Bool[Tensor, "E T"],
    discount: float,
    trace: float,
) -> Float[Tensor, "E T"]:
    """Generalized advantage estimates (arXiv 1506.02438, eq. 16), accumulated backwards and cut at episode ends.

    Args:
        rewards: r_t, received for the action taken at t.
        values: V(s_t).
        next_values: V of the state that followed the action: 0 after a termination, V of the true last observation
            after a truncation, V(s_{t+1}) otherwise. The caller knows which; nothing is guessed from ``episode_ends``.
        episode_ends: True where step t was the last of its episode, however it ended.
        discount: gamma in [0, 1].
        trace: lambda in [0, 1].
    """
    errors = rewards + discount * next_values - values
    carry = discount * trace * (~episode_ends).to(errors.dtype)
    # In numpy an operation on a few numbers costs a third of what it costs on tensors.
    deltas, carries = errors.T.contiguous().cpu().numpy(), carry.T.contiguous().cpu().numpy()
    advantages, advantage = np.empty_like(deltas), np.zeros_like(deltas[0])
    for t in reversed(range(len(deltas))):
        advantages[t] = advantage = deltas[t] + carries[t] * advantage
    return torch.from_numpy(advantages).T.contiguous().to(errors.device)
