"""Steps of all environments between two updates, as one whole segment per environment. Axes: E environments, T steps.

A transformer with memory is trained on segments: the memory at the segment start is kept once per environment, not once
per step, and a minibatch is a set of whole segments (chosen environments).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rltransformers.core.errors import ConfigError
from rltransformers.core.spaces import leaf_spaces
from rltransformers.functional.returns import generalised_advantage

Space = gym.Space[Any]
MemoryT = TypeVar("MemoryT", bound="Memory")


class Memory(Protocol):
    """What the buffer needs of a memory record: rows can be chosen, and it can be copied."""

    def __getitem__(self: MemoryT, rows: Tensor) -> MemoryT: ...

    def clone(self: MemoryT) -> MemoryT: ...


@dataclass(frozen=True)
class Segment:
    """Consecutive steps of several environments and the memory they started from.

    ``first`` marks the first step of an episode. ``counts`` is False for rows that are no transition of the environment
    (the reset row of next-step autoreset): they are in no loss. ``previous_action`` and ``previous_reward`` belong to
    the step before the segment. Advantages and returns are those of the policy that acted.
    """

    observations: dict[str, Tensor]  # by leaf path, [E, T, leaf shape]
    actions: Tensor  # [E, T] indices, or [E, T, A]
    rewards: Tensor  # [E, T], as the environment gave them
    first: Tensor  # bool [E, T]
    counts: Tensor  # bool [E, T]
    values: Tensor  # [E, T]
    log_probs: Tensor  # [E, T]
    advantages: Tensor  # [E, T]
    returns: Tensor  # [E, T], targets of the value function
    memory: Any  # Memory of E rows
    previous_action: Tensor  # [E] or [E, A]
    previous_reward: Tensor  # [E]

    def rows(self, index: Tensor) -> "Segment":
        """The segments of the chosen environments."""
        return Segment(
            observations={path: leaf[index] for path, leaf in self.observations.items()},
            actions=self.actions[index],
            rewards=self.rewards[index],
            first=self.first[index],
            counts=self.counts[index],
            values=self.values[index],
            log_probs=self.log_probs[index],
            advantages=self.advantages[index],
            returns=self.returns[index],
            memory=self.memory[index],
            previous_action=self.previous_action[index],
            previous_reward=self.previous_reward[index],
        )

    def __len__(self) -> int:
        return int(self.rewards.shape[0])


class RolloutBuffer:
    """Room for ``n_steps`` steps of ``n_envs`` environments in contiguous [E, T] tensors.

    Each rollout gets fresh tensors, so a finished ``Segment`` stays valid while the next one is collected. Observations
    keep their integer types (images stay bytes); floating leaves are stored as float32.
    """

    def __init__(
        self,
        n_envs: int,
        n_steps: int,
        observation_space: Space,
        action_space: Space,
        device: torch.device | str = "cpu",
    ) -> None:
        self.n_envs = n_envs
        self.n_steps = n_steps
        self.observation_leaves = {
            path: (tuple(leaf.shape or ()), observation_dtype(leaf))
            for path, leaf in leaf_spaces(observation_space).items()
        }
        self.action_shape, self.action_dtype = stored_action(action_space)
        self.device = torch.device(device)
        self.reset()

    def reset(
        self, memory: Any = None, previous_action: Tensor | None = None, previous_reward: Tensor | None = None
    ) -> None:
        """Start a rollout whose first step sees ``memory`` (one row per environment).

        It is copied: what acting keeps is larger, because it has spare room for the steps to come.
        """
        lead = (self.n_envs, self.n_steps)
        self.position = 0
        self.memory = None if memory is None else memory.clone()
        self.previous_action = self._zeros((self.n_envs, *self.action_shape), self.action_dtype)
        if previous_action is not None:
            self.previous_action = previous_action.clone()
        self.previous_reward = (
            self._zeros((self.n_envs,), torch.float32) if previous_reward is None else previous_reward.clone()
        )
        self.observations = {
            path: self._zeros((*lead, *shape), dtype) for path, (shape, dtype) in self.observation_leaves.items()
        }
        self.actions = self._zeros((*lead, *self.action_shape), self.action_dtype)
        self.rewards, self.values, self.log_probs, self.last_values = (
            self._zeros(lead, torch.float32) for _ in range(4)
        )
        self.first, self.episode_ends, self.truncated = (self._zeros(lead, torch.bool) for _ in range(3))
        self.counts = torch.ones(lead, dtype=torch.bool, device=self.device)

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    @property
    def full(self) -> bool:
        return self.position == self.n_steps

    def add(
        self,
        observations: Mapping[str, Tensor],
        actions: Tensor,
        rewards: Tensor,
        first: Tensor,
        episode_ends: Tensor,
        values: Tensor,
        log_probs: Tensor,
        counts: Tensor,
    ) -> None:
        """Store one step of every environment; every argument has one row per environment."""
        t = self.position
        for path, leaf in self.observations.items():
            leaf[:, t] = observations[path]
        self.actions[:, t] = actions
        self.rewards[:, t] = rewards
        self.first[:, t] = first
        self.episode_ends[:, t] = episode_ends
        self.values[:, t] = values
        self.log_probs[:, t] = log_probs
        self.counts[:, t] = counts
        self.position += 1

    def truncate(self, rows: Tensor, last_values: Tensor) -> None:
        """Mark the newest step of these environments as cut by a limit, with the value of its true last observation."""
        self.truncated[rows, self.position - 1] = True
        self.last_values[rows, self.position - 1] = last_values

    def finish(self, bootstrap: Tensor, discount: float, trace: float) -> Segment:
        """The whole rollout with advantages; ``bootstrap`` [E] is the value of the observation after the last step."""
        following = torch.cat([self.values[:, 1:], bootstrap[:, None]], dim=1)
        after_end = torch.where(self.truncated, self.last_values, torch.zeros_like(following))
        next_values = torch.where(self.episode_ends, after_end, following)
        advantages = generalised_advantage(
            self.rewards, self.values, next_values, self.episode_ends | ~self.counts, discount, trace
        )
        return Segment(
            observations=self.observations,
            actions=self.actions,
            rewards=self.rewards,
            first=self.first,
            counts=self.counts,
            values=self.values,
            log_probs=self.log_probs,
            advantages=advantages,
            returns=advantages + self.values,
            memory=self.memory,
            previous_action=self.previous_action,
            previous_reward=self.previous_reward,
        )


def minibatches(segment: Segment, n_rows: int, generator: torch.Generator) -> Iterator[Segment]:
    """Whole segments in random order, ``n_rows`` environments at a time (the last batch may hold fewer)."""
    order = torch.randperm(len(segment), generator=generator).to(segment.rewards.device)
    for index in order.split(n_rows):
        yield segment.rows(index)


def observation_dtype(leaf: Space) -> torch.dtype:
    """Storage type of one observation leaf: float32 for floats, bytes and booleans as they are, else int64."""
    if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete):
        return torch.int64
    dtype = np.dtype(leaf.dtype)
    if np.issubdtype(dtype, np.floating):
        return torch.float32
    if dtype in (np.dtype(np.uint8), np.dtype(np.int8), np.dtype(np.bool_)):
        return torch.bool if dtype == np.bool_ else (torch.uint8 if dtype == np.uint8 else torch.int8)
    return torch.int64


def stored_action(space: Space) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and type of one stored action: indices as int64 from 0 (never a byte), Box and MultiBinary as float32 [A].

    Raises:
        ConfigError: for an action space that no action head can produce.
    """
    if isinstance(space, spaces.Discrete):
        return (), torch.int64
    if isinstance(space, spaces.MultiDiscrete) and len(space.shape) == 1:
        return space.shape, torch.int64
    if isinstance(space, spaces.MultiBinary) and len(space.shape) == 1:
        return space.shape, torch.float32
    if isinstance(space, spaces.Box):
        return (int(np.prod(space.shape)),), torch.float32
    raise ConfigError(
        f"the action space {space} is not supported; supported are Discrete, Box, and MultiDiscrete and MultiBinary of "
        "one axis: flatten or encode the action with a wrapper"
    )
