"""Layers in turn: each its own, or one that is applied again and again (Universal Transformer).

Axes: B batch, T tokens, D model width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rltransformers.blocks.layer import Layer
from rltransformers.functional.call import EVERY, Call
from rltransformers.functional.sinusoids import sinusoid
from rltransformers.memory.interface import LayerState

Embed = Callable[[Tensor, Call], Tensor]
"""The stream with the encodings that act on the input of a layer."""


def layer_place(index: int) -> str:
    """Name of the ``index``-th application of a layer, in states, metrics and tables."""
    return f"layer{index}"


@dataclass(frozen=True)
class Plain:
    """Every layer once; the last one gives the wanted tokens.

    Attributes:
        layers: the layer of every application.
    """

    layers: Sequence[Layer]

    def run(self, x: Tensor, states: Sequence[LayerState], call: Call) -> tuple[Tensor, list[LayerState]]:
        """Stream [B, t, D] and states after all layers."""
        after, below = [], None
        for index, (layer, state) in enumerate(zip(self.layers, states, strict=True)):
            wanted = call.wanted if index == len(self.layers) - 1 else EVERY
            mixed = layer(self.into(x, index, call), state, call.at(layer_place(index), wanted), below)
            x, below = mixed.out, mixed.logits
            after.append(mixed.state)
        return x, after

    def into(self, x: Tensor, index: int, call: Call) -> Tensor:
        """What the layer receives."""
        return x


@dataclass(frozen=True)
class Universal(Plain):
    """One layer, which is told where it is applied (Dehghani et al. 2019, arXiv 1807.03819, equation 6)."""

    embed: Embed

    def into(self, x: Tensor, index: int, call: Call) -> Tensor:
        """The stream with its positions and the number of the application."""
        return self.signal(self.embed(x, call), index)

    @staticmethod
    def signal(x: Tensor, index: int) -> Tensor:
        """Which application of the layer this is."""
        return x + sinusoid(torch.full((), index + 1, device=x.device), x.shape[-1], x)
