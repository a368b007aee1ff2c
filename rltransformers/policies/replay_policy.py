"""Base of policies that learn from a replay: memory and features of windows, and a target network.

Axes: B environments, T steps, W token width, O outputs of the action head.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from stable_baselines3.common.type_aliases import Schedule
from torch import Tensor, nn

from rltransformers.backbone import Record, State
from rltransformers.core.spaces import Space
from rltransformers.data.replay import Window
from rltransformers.functional.modules import approach
from rltransformers.policies.memory_policy import NOTHING, MemoryPolicy
from rltransformers.policies.optimizers import OptimizerName, OptimizerOptions, decay_groups, make_optimizer, over
from rltransformers.policies.policy_state import PolicyState, StepInputs
from rltransformers.policies.registered import check_alike
from rltransformers.policies.token_backbone import TokenBackbone


class ReplayPolicy(MemoryPolicy):
    """A ``MemoryPolicy`` with windows of a replay; a subclass ends its constructor with ``_begin_learning``."""

    only_learns = ("target",)
    target_parts: tuple[str, ...]  # attributes of which the target network holds slow copies
    target: nn.ModuleDict
    learned: list[nn.Parameter]  # all but those of the target network

    def _begin_learning(
        self, lr_schedule: Schedule, optimizer: OptimizerName, optimizer_kwargs: OptimizerOptions | None
    ) -> None:
        self.learned = list(self.parameters())
        # Adam's own epsilon: errors of values are as small as rewards, where a larger one takes the steps away.
        options: dict[str, Any] = {"fused": True} | dict(optimizer_kwargs or {})
        self.optimizer = make_optimizer(optimizer, self, self._groups(), lr_schedule(1.0), options)
        self.target = self._slow_copy()

    def complete(self) -> None:
        """As for ``GTrXLPolicy``; the target network copies ``target_parts``."""
        check_alike(self, f"policy {type(self).__name__}")
        self.learned = [each for name, each in self.named_parameters() if not name.startswith("target.")]
        self.optimizer = over(self.optimizer, self, self._groups())
        self.target = self._slow_copy()

    def _groups(self) -> list[dict[str, Any]]:
        return decay_groups(self, self.learned)

    def _slow_copy(self) -> nn.ModuleDict:
        parts = {name: copy.deepcopy(getattr(self, name)) for name in self.target_parts}
        return nn.ModuleDict(parts).requires_grad_(False)

    @property
    def drawn_space(self) -> Space:
        """The space of actions as ``step`` gives them and a replay stores them."""
        return self.action_space

    # Windows of replay

    def memory_of(self, window: Window, part: TokenBackbone) -> State:
        """The memory behind the context of a window, of today's weights; no gradient reaches it."""
        with torch.no_grad():
            state = part.backbone.initial_state(len(window.position))
            state = State(state.tensors | {"position": window.position - 1})
            if window.context:
                _, state = part(_inputs(window, slice(None, window.context)), state, None, NOTHING)
            return state

    def features(self, window: Window, part: TokenBackbone, record: Record | None = None) -> Float[Tensor, "B T W"]:
        """Features of the steps behind the context; the gradient flows through these steps alone."""
        steps = _inputs(window, slice(window.context, None))
        features, _ = part(steps, self.memory_of(window, part), record)
        return features

    def acting_state(self, window: Window, actions: Mapping[str, Tensor], rewards: Tensor) -> PolicyState:
        """The state for acting behind the last row of a window whose rows are all context."""
        critic = None if self.critic is None else self.memory_of(window, self.critic)
        state = PolicyState(self.memory_of(window, self.actor), critic, dict(actions), rewards)
        return self.with_cache(state)

    # Target network

    def set_training_mode(self, mode: bool) -> None:
        super().set_training_mode(mode)
        self.target.eval()  # it only ever evaluates

    def follow(self, tau: float) -> None:
        """Move the target network towards this one: its weights become (1 - tau) old + tau new, buffers are copied."""
        for name, module in self.target.items():
            source: nn.Module = getattr(self, name)
            approach(dict(module.named_parameters()), dict(source.named_parameters()), tau)
            approach(dict(module.named_buffers()), dict(source.named_buffers()), 1.0)


def _inputs(window: Window, steps: slice) -> StepInputs:
    inputs = StepInputs(window.observations, window.previous_actions, window.previous_rewards, window.first)
    return inputs.part(steps)
