"""Actions of soft actor-critic: Boxes are the tanh of a normal variable, everything else a softmax over combinations.

"..." stands for any leading axes, W is feature width, O counts outputs, A numbers of Boxes, J combinations of countable
actions, N critics, C components of a leaf, U numbers of noise.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.action_masks import choices_of
from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import LARGEST
from rltransformers.core.spaces import Space, box_bounds
from rltransformers.policies.action_heads import ActionHead
from rltransformers.policies.action_leaves import (
    HALF_LOG_TAU,
    MASKED,
    ActionLeaf,
    BinaryAction,
    CategoricalAction,
    ContinuousAction,
    flat,
    shaped,
)

SQUASHED_LOG_STD_RANGE = (-20.0, 2.0)
"""Of deviations before the tanh, as in Stable-Baselines3."""
MOST_COMBINATIONS = 1_024
"""Of countable actions: a critic has an output for each."""
INSIDE = 1.0 - 1e-6
"""Largest size of an action whose tanh is inverted in float32."""


class SquashedAction(ContinuousAction):
    """A Box leaf whose components are tanh(u), u normal with a mean and a deviation from the network.

    Samples are in head units, where the bounds are -1 and 1, as an agent stores and sees its actions; ``execute`` makes
    of a sample what the environment takes (arXiv 1801.01290, appendix C).

    Raises ConfigError for a bound of ``LARGEST`` or more, which units of the bounds cannot reach.
    """

    normal_noise = has_density = True
    has_entropy = False

    def __init__(self, space: spaces.Box) -> None:
        super().__init__(space, None)
        if (largest := np.abs(box_bounds(space)).max()) >= LARGEST:
            raise ConfigError(
                f"soft actor-critic acts between the bounds of a Box, which must be smaller than {LARGEST:g}, got "
                f"{largest:g} in {space}; rescale the action with a wrapper (gymnasium.wrappers.RescaleAction), or "
                "take GTrXLPPO"
            )
        self.draws, self.outputs = self.components, 2 * self.components

    def squash(self, output: Float[Tensor, "... O"]) -> Float[Tensor, "... A"]:
        """The most likely u through the tanh."""
        return output[..., : self.components].tanh()

    def log_std(self, output: Float[Tensor, "... O"]) -> Float[Tensor, "... A"]:
        return output[..., self.components :].clamp(*SQUASHED_LOG_STD_RANGE)

    def drawn(
        self, output: Float[Tensor, "... O"], noise: Float[Tensor, "... A"]
    ) -> tuple[Float[Tensor, "... A"], Float[Tensor, "..."]]:
        """Action in head units and the logarithm of its density; the gradient flows through both."""
        log_std = self.log_std(output)
        u = torch.addcmul(output[..., : self.components], log_std.exp(), noise)
        return u.tanh(), _log_density(u, noise, log_std)

    def decode(self, output: Float[Tensor, "... O"], noise: Float[Tensor, "... A"] | None = None) -> Tensor:
        numbers = self.squash(output) if noise is None else self.drawn(output, noise.to(output.dtype))[0]
        return shaped(numbers, self.shape)

    def execute(self, action: Tensor) -> Tensor:
        return self.inside(flat(action, self.shape))

    def as_drawn(self, action: Tensor) -> Tensor:
        return self.as_numbers(action).view_as(action)

    def log_prob(self, output: Float[Tensor, "... O"], action: Tensor) -> Float[Tensor, "..."]:
        inside = flat(action, self.shape).clamp(-INSIDE, INSIDE)
        u = 0.5 * (inside.log1p() - (-inside).log1p())
        log_std = self.log_std(output)
        return _log_density(u, (u - output[..., : self.components]) * (-log_std).exp(), log_std)


def _log_density(u: Tensor, noise: Tensor, log_std: Tensor) -> Tensor:
    """Of tanh(u) with u = mean + exp(log_std) noise; log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u))."""
    normal = 0.5 * noise.square() + log_std + HALF_LOG_TAU
    return -(normal + 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))).sum(-1)


class Drawn(NamedTuple):
    """What a policy does at some steps."""

    boxes: Float[Tensor, "... A"]  # a sample of the Boxes, in head units
    log_density: Float[Tensor, "..."]  # of this sample
    log_probs: Float[Tensor, "... J"]  # of every combination of countable actions


class SoftHead(ActionHead):
    """Linear layer from features to the outputs of every leaf of an action space.

    Raises ConfigError for more than ``MOST_COMBINATIONS`` combinations of countable actions.
    """

    def __init__(self, space: Space, width: int) -> None:
        self.combinations = math.prod(choices_of(space))
        if self.combinations > MOST_COMBINATIONS:
            raise ConfigError(
                f"soft actor-critic sums over all combinations of countable actions, at most {MOST_COMBINATIONS:,}, "
                f"and this action space has {self.combinations:,}; leave some out with a wrapper, or take GTrXLPPO"
            )
        super().__init__(space, width, embeds=False, box=lambda leaf, *_: SquashedAction(leaf))
        boxes = {path: leaf for path, leaf in self.by_path.items() if isinstance(leaf, SquashedAction)}
        self.boxes, self.box_numbers = boxes, sum(leaf.components for leaf in boxes.values())

    def drawn(self, outputs: Float[Tensor, "... O"], noise: Float[Tensor, "... A"] | None = None) -> Drawn:
        """A sample of the Boxes by their noise, or without noise the most likely one, and all else exactly."""
        parts = self.split(outputs)
        actions, densities = [outputs[..., :0]], [outputs.new_zeros(outputs.shape[:-1])]
        begin = 0
        for path, leaf in self.boxes.items():
            end = begin + leaf.components
            own = torch.zeros_like(parts[path][..., : leaf.components]) if noise is None else noise[..., begin:end]
            action, density = leaf.drawn(parts[path], own)
            actions.append(action)
            densities.append(density)
            begin = end
        log_probs = outputs.new_zeros(*outputs.shape[:-1], 1)
        for path, any_leaf in self.by_path.items():
            for logs in _component_logs(any_leaf, parts[path]):
                log_probs = (log_probs.unsqueeze(-1) + logs.unsqueeze(-2)).flatten(-2)
        return Drawn(torch.cat(actions, -1), torch.stack(densities).sum(0), log_probs)

    def taken(self, actions: Mapping[str, Tensor]) -> tuple[Float[Tensor, "... A"], Int[Tensor, "..."]]:
        """Numbers of the Boxes, and which combination it was, of actions as ``decode`` gives them."""
        lead = next(iter(actions.items()))
        shape = lead[1].shape[: lead[1].dim() - len(self.by_path[lead[0]].shape)]
        like = self.linear.weight
        boxes, index = [like.new_zeros(*shape, 0)], torch.zeros(shape, dtype=torch.long, device=like.device)
        for path, leaf in self.by_path.items():
            numbers = flat(actions[path], leaf.shape)
            if isinstance(leaf, SquashedAction):
                boxes.append(numbers)
                continue
            classes = leaf.classes(actions[path]) if isinstance(leaf, CategoricalAction) else numbers.long()
            for component, size in zip(classes.unbind(-1), choices_of(self.spaces[path]), strict=True):
                index = index * size + component
        return torch.cat(boxes, -1), index

    def uniform(self, noise: Float[Tensor, "... U"], mask: Shaped[Tensor, "... M"] | None) -> dict[str, Tensor]:
        """Actions of which each is as likely as another, by the numbers of ``draw``; of countable ones the allowed."""
        outputs = noise.new_zeros(*noise.shape[:-1], self.linear.out_features)
        actions = self.decode(outputs if mask is None else self.masked(outputs, mask), noise)
        numbers = self.split(noise, "draws")
        # Twice the normal distribution function minus 1 is uniform between the bounds.
        return actions | {path: (numbers[path] / math.sqrt(2.0)).erf().view_as(actions[path]) for path in self.boxes}

    def auto_entropy(self, log_probs: Float[Tensor, "... J"], share: float) -> Float[Tensor, "..."]:
        """Target of the entropy: minus the number of components of Boxes, plus a share of the largest of the rest."""
        allowed = (log_probs > 0.5 * MASKED).sum(-1).clamp(min=1)
        return share * allowed.to(log_probs.dtype).log() - float(self.box_numbers)


def _component_logs(leaf: ActionLeaf, output: Tensor) -> list[Tensor]:
    """Log-probabilities [..., n] of the n values of every countable component of a leaf."""
    if isinstance(leaf, CategoricalAction):
        return [part.log_softmax(-1) for part in output.split_with_sizes(leaf.sizes, -1)]
    if isinstance(leaf, BinaryAction):
        return list(torch.stack([F.logsigmoid(-output), F.logsigmoid(output)], -1).unbind(-2))
    return []


class SoftCritics(nn.Module):
    """N values of every combination of countable actions, given features and numbers of the Boxes.

    Two hidden layers of ReLU each, with a LayerNorm before them where ``layer_norm``.
    """

    def __init__(
        self, features: int, numbers: int, combinations: int, width: int, count: int, layer_norm: bool
    ) -> None:
        super().__init__()

        def hidden(size: int) -> list[nn.Module]:
            return [nn.Linear(size, width), *([nn.LayerNorm(width)] if layer_norm else []), nn.ReLU()]

        self.each = nn.ModuleList(
            nn.Sequential(*hidden(features + numbers), *hidden(width), nn.Linear(width, combinations))
            for _ in range(count)
        )

    def forward(self, features: Float[Tensor, "... W"], boxes: Float[Tensor, "... A"]) -> Float[Tensor, "... N J"]:
        seen = torch.cat([features, boxes], -1)
        return torch.stack([critic(seen) for critic in self.each], -2)
