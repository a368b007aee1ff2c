"""What a policy with memory carries from step to step, and what its network reads of steps. B environments, T steps."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partialmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rltransformers.backbone import State
from rltransformers.core.values import to_tensor
from rltransformers.data.rollout import Leaves


@dataclass(frozen=True)
class PolicyState:
    """State of a policy in every environment: the memory of its backbones and the step before this one.

    Rows can be chosen with ``state[index]``. It is passed in and returned, and never changed in place.
    """

    actor: State
    critic: State | None  # None: the value shares the actor's backbone
    previous_action: Leaves  # by leaf path, [B, leaf shape]
    previous_reward: Tensor  # [B]

    def __repr__(self) -> str:
        critic = "" if self.critic is None else f", critic {self.critic}"
        return f"PolicyState(batch {self.batch_size}, actor {self.actor}{critic})"

    @property
    def batch_size(self) -> int:
        return int(self.previous_reward.shape[0])

    def map(self, function: Callable[[Tensor], Tensor]) -> "PolicyState":
        """``function`` of every tensor."""
        critic = None if self.critic is None else self.critic.map(function)
        action = {path: function(leaf) for path, leaf in self.previous_action.items()}
        return PolicyState(self.actor.map(function), critic, action, function(self.previous_reward))

    clone = partialmethod(map, Tensor.clone)

    def __getitem__(self, rows: Tensor) -> "PolicyState":
        return self.map(lambda tensor: tensor[rows])

    def inputs(
        self, observations: Mapping[str, Tensor], actions: Mapping[str, Tensor], rewards: Tensor, first: Tensor
    ) -> "StepInputs":
        """Inputs of the T steps behind this state, with actions by path [B, T, leaf shape] and rewards [B, T]."""
        before = self.previous_action
        actions = {path: torch.cat([before[path].unsqueeze(1), leaf[:, :-1]], 1) for path, leaf in actions.items()}
        rewards = torch.cat([self.previous_reward.unsqueeze(1), rewards[:, :-1]], 1)
        return StepInputs(observations, actions, rewards, first)

    def after(self, actions: Mapping[str, Tensor], rewards: Tensor) -> "PolicyState":
        """The state with the last of T actions and rewards; its memory already is the one behind them."""
        last = {path: leaf[:, -1] for path, leaf in actions.items()}
        return PolicyState(self.actor, self.critic, last, rewards[:, -1])

    def tensors(self) -> dict[str, Any]:
        """Every tensor by name, for checkpoints."""
        critic = None if self.critic is None else self.critic.tensors
        return vars(self) | {"actor": self.actor.tensors, "critic": critic}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Any]) -> "PolicyState":
        """The inverse of ``tensors``."""
        critic = None if tensors["critic"] is None else State(tensors["critic"])
        return cls(**{**tensors, "actor": State(tensors["actor"]), "critic": critic})


class StepInputs(NamedTuple):
    """What a network reads of steps [B, ...] or [B, T, ...].

    Actions and rewards are those of the step before each step, and not read where ``first`` is True.
    """

    observations: Mapping[str, Tensor]  # by leaf path
    previous_actions: Mapping[str, Tensor]  # by leaf path
    previous_rewards: Tensor
    first: Tensor  # bool, where an episode begins

    def part(self, steps: slice) -> "StepInputs":
        """Those of some of the T steps."""
        return StepInputs(
            {path: leaf[:, steps] for path, leaf in self.observations.items()},
            {path: leaf[:, steps] for path, leaf in self.previous_actions.items()},
            self.previous_rewards[:, steps],
            self.first[:, steps],
        )


def with_reward(state: PolicyState, rewards: Any) -> PolicyState:
    """The state after the environment answered the last action with ``rewards`` [B]."""
    held = state.previous_reward
    tensor = to_tensor(rewards, held.device, held.dtype)
    if tensor.shape != held.shape:
        tensor = tensor.reshape(held.shape)
    return PolicyState(state.actor, state.critic, state.previous_action, tensor)
