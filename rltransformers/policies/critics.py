"""Twin critics of one step, and what a policy is worth under them: exact expectations, differentiable in the policy.

Axes: J alternatives of an action, A numbers of one (as ``ActionHead.as_numbers`` writes them), O outputs of the head;
"..." any leading axes.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rltransformers.core.action_masks import choices_of
from rltransformers.core.errors import ConfigError
from rltransformers.core.spaces import Space
from rltransformers.policies.action_heads import ActionHead
from rltransformers.policies.action_leaves import BinaryAction, CategoricalAction, ContinuousAction
from rltransformers.policies.encoders import ObservationEncoder
from rltransformers.policies.registered import LeafChoice

MAX_ALTERNATIVES = 64  # combinations of discrete actions over which an expected value is still a sum


class Critic(nn.Module):
    """Q(s, a) by three hidden layers of ReLU; the first is linear in observation and action side by side."""

    def __init__(self, observation_space: Space, numbers: int, width: int, leaves: Mapping[str, LeafChoice]) -> None:
        super().__init__()
        self.encoder = ObservationEncoder(observation_space, width, leaves)
        self.action = nn.Linear(numbers, width, bias=False)
        self.second = nn.Linear(width, width)
        self.third = nn.Linear(width, width)
        self.value = nn.Linear(width, 1)

    def forward(self, observations: Mapping[str, Tensor], actions: Float[Tensor, "... J A"]) -> Float[Tensor, "... J"]:
        hidden = (self.encoder(observations).unsqueeze(-2) + self.action(actions)).relu()
        hidden = self.third(self.second(hidden).relu()).relu()
        return self.value(hidden).squeeze(-1)


class TwinCritics(nn.Module):
    """Two critics with weights of their own (Fujimoto et al. 2018, arXiv 1802.09477, section 4.2).

    Args:
        leaves: encoders of leaves of the observation by path, where they are not what the space says.
        scale: reward units per unit of what the networks say.
    """

    scale: Tensor

    def __init__(
        self,
        observation_space: Space,
        numbers: int,
        width: int = 256,
        leaves: Mapping[str, LeafChoice] | None = None,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(float(scale)))
        self.first, self.second = (Critic(observation_space, numbers, width, leaves or {}) for _ in range(2))

    def forward(
        self, observations: Mapping[str, Tensor], actions: Float[Tensor, "... J A"]
    ) -> Float[Tensor, "2 ... J"]:
        """Both values of J actions, in reward units, at every observation, standardized as the policy reads it."""
        return self.scale * torch.stack([self.first(observations, actions), self.second(observations, actions)])

    def expected(
        self, observations: Mapping[str, Tensor], head: ActionHead, outputs: Float[Tensor, "... O"]
    ) -> Float[Tensor, "2 ..."]:
        """Mean value of the actions of a policy with these head outputs; the gradient flows into ``outputs``.

        A Box leaf takes its one action, or its mean; discrete leaves are summed over with their probabilities.
        """
        actions, probability = alternatives(head, outputs)
        return (self(observations, actions) * probability).sum(-1)


def alternatives(
    head: ActionHead, outputs: Float[Tensor, "... O"]
) -> tuple[Float[Tensor, "... J A"], Float[Tensor, "... J"]]:
    """Every combination of discrete actions, with the one action or the mean of every Box, and how probable each is."""
    numbers, probability = outputs.new_zeros(*outputs.shape[:-1], 1, 0), outputs.new_ones(*outputs.shape[:-1], 1)
    parts = head.split(outputs)
    for path, leaf in head.by_path.items():
        if isinstance(leaf, ContinuousAction):
            action = leaf.squash(parts[path]).unsqueeze(-2)
            numbers = torch.cat([numbers, action.expand(*numbers.shape[:-1], -1)], -1)
            continue
        for chances, written in _choices(leaf, parts[path]):
            count, before = len(written), numbers.shape[-2]
            rows = written.repeat(before, 1).expand(*numbers.shape[:-2], -1, -1)
            numbers = torch.cat([numbers.repeat_interleave(count, -2), rows], -1)
            probability = (probability.unsqueeze(-1) * chances.unsqueeze(-2)).flatten(-2)
    return numbers, probability


def check_alternatives(head: ActionHead) -> None:
    """Raise ConfigError where a policy has more alternatives than ``MAX_ALTERNATIVES``."""
    count = math.prod(size for space in head.spaces.values() for size in choices_of(space))
    if count > MAX_ALTERNATIVES:
        raise ConfigError(
            f"critic sums over all combinations of discrete actions, at most {MAX_ALTERNATIVES}, and this action space"
            f" has {count:,}; leave critic out"
        )


def _choices(leaf: Any, output: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Per component of a discrete leaf, its probabilities [..., n] and how its n values are written [n, numbers]."""
    if isinstance(leaf, BinaryAction):
        bits = torch.tensor([[0.0], [1.0]], dtype=output.dtype, device=output.device)
        chances = torch.stack([(-output).sigmoid(), output.sigmoid()], -1)
        return [(each, bits) for each in chances.unbind(-2)]
    assert isinstance(leaf, CategoricalAction)
    return [
        (part.softmax(-1), torch.eye(size, dtype=output.dtype, device=output.device))
        for part, size in zip(output.split_with_sizes(leaf.sizes, -1), leaf.sizes, strict=True)
    ]
