"""From everything that a step shows to one token, the backbone that reads the tokens, and its auxiliary losses.

Axes: B environments, W token width.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from torch import Tensor, nn

from rltransformers.backbone import Backbone, BackboneConfig, Record, State
from rltransformers.core.errors import ConfigError
from rltransformers.core.record import Means
from rltransformers.core.spaces import Space, leaf_spaces
from rltransformers.functional.call import EVERY
from rltransformers.functional.modules import add_optional
from rltransformers.policies.encoders import ObservationEncoder, Observed, observe, unbounded
from rltransformers.policies.observations import first_task, read_task
from rltransformers.policies.observed import Encoding, observation_parts
from rltransformers.policies.policy_state import StepInputs


def check_dropout(config: BackboneConfig) -> None:
    """Raise ConfigError for a backbone with dropout, which no online agent can learn with."""
    if config.dropout > 0:
        raise ConfigError(
            f"dropout is {config.dropout}, but must be 0 online: with it the action probabilities of "
            "rollout and update differ; set dropout of policy_kwargs['backbone'] to 0 (backbone.dropout in a config)"
        )


class TokenParts(NamedTuple):
    """What a token is the sum of: how the observation is encoded, and whether the other parts are added."""

    encoding: Encoding
    previous_action: bool
    previous_reward: bool
    first_step: bool


class TokenBackbone(nn.Module):
    """Encoders of everything a step may show, summed into one token, and the backbone that reads the tokens."""

    def __init__(
        self, observation_space: Space, action_space: Space, config: BackboneConfig, parts: TokenParts
    ) -> None:
        super().__init__()
        width = config.width
        self.observation, self.elements = observation_parts(observation_space, config, parts.encoding)
        # Sampled actions of a Box are in units of the head, in which its bounds say nothing.
        boxes = [path for path, leaf in leaf_spaces(action_space).items() if isinstance(leaf, spaces.Box)]
        actions = unbounded(action_space, boxes)
        self.previous_action = ObservationEncoder(actions, width) if parts.previous_action else None
        self.previous_reward = nn.Linear(1, width) if parts.previous_reward else None
        self.first_step = nn.Parameter(torch.randn(width) / math.sqrt(width)) if parts.first_step else None
        self.backbone = Backbone(config)
        self.task = first_task(observation_space, config.tasks)

    def tokens(self, inputs: StepInputs) -> Observed:
        """Tokens [..., W], and the elements of their observations."""
        tokens, elements = observe(self.observation, self.elements, inputs.observations)
        if self.previous_action is None and self.previous_reward is None and self.first_step is None:
            return Observed(tokens, elements)
        later = (~inputs.first).unsqueeze(-1).to(tokens.dtype)
        if self.previous_action is not None:
            tokens = tokens + later * self.previous_action(inputs.previous_actions)
        if self.previous_reward is not None:
            tokens = tokens + later * self.previous_reward(inputs.previous_rewards.unsqueeze(-1).to(tokens.dtype))
        if self.first_step is not None:
            tokens = tokens + (1.0 - later) * self.first_step
        return Observed(tokens, elements)

    def forward(
        self, inputs: StepInputs, state: State | None, record: Record | None, wanted: slice = EVERY
    ) -> tuple[Tensor, State]:
        """Features of the ``wanted`` steps, and the memory after all of them."""
        seen = self.tokens(inputs)
        task = None if self.task is None else read_task(inputs.observations, self.task)
        context = seen.context() if self.backbone.reads_context else None
        features, memory = self.backbone(
            seen.token, state, inputs.first, task=task, context=context, wanted=wanted, record=record
        )
        return features, memory

    def step(
        self, inputs: StepInputs, state: State, tables: dict[str, Tensor], overwrites: bool
    ) -> tuple[Tensor, State]:
        """Features [B, W] of one step of every environment, and the memory after it; see ``Backbone.step``."""
        seen = self.tokens(inputs)
        task = None if self.task is None else read_task(inputs.observations, self.task).unsqueeze(1)
        context = seen.at_once().context() if self.backbone.reads_context else None
        token, reset = seen.token.unsqueeze(1), inputs.first.unsqueeze(1)
        features, memory = self.backbone.step(
            token, state, reset, task=task, context=context, tables=tables, overwrites=overwrites
        )
        return features.squeeze(1), memory


def hidden_layer(width: int, head_width: int) -> tuple[nn.Module, int]:
    """One layer of tanh units in front of a head and its width; without units the features themselves."""
    if head_width == 0:
        return nn.Identity(), width
    hidden = nn.Linear(width, head_width)
    BasePolicy.init_weights(hidden, gain=math.sqrt(2.0))
    return nn.Sequential(hidden, nn.Tanh()), head_width


@dataclass(kw_only=True)
class BaseEvaluation:
    """What backbones told in an evaluation: ``auxiliary_loss`` is the sum of ``losses`` with these ``weights``."""

    record: Record | None = None
    auxiliary_loss: Tensor | None = None
    losses: dict[str, Tensor] = field(default_factory=dict)  # named as in the config, those of a critic with "value_"
    means: dict[str, list[Means]] = field(default_factory=dict)  # what each of ``losses`` is the sum of
    weights: dict[str, float] = field(default_factory=dict)

    def add_losses(self, backbone: Backbone, record: Record, of_critic: bool = False) -> None:
        """Add the auxiliary losses in a record of the backbone."""
        weights, prefix = backbone.aux_weights, "value_" if of_critic else ""
        weighted = [weights[name] * loss for name, loss in record.losses.items() if name in weights]
        if weighted:
            self.auxiliary_loss = add_optional(self.auxiliary_loss, torch.stack(weighted).sum())
        for name, loss in record.losses.items():
            self.losses[f"{prefix}{name}"], self.means[f"{prefix}{name}"] = loss, record.means[name]
            if name in weights:
                self.weights[f"{prefix}{name}"] = weights[name]
