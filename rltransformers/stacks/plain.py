"""Layers in turn: each its own, or one that is applied again and again (Universal Transformer).

Axes: B batch, T tokens, D model width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rltransformers.blocks.layer import Layer
from rltransformers.functional.call import EVERY, Call, chosen
from rltransformers.memory.interface import LayerState
from rltransformers.mixers.interface import Mixed
from rltransformers.positions.interface import sinusoid

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
        recomputes: for the backward pass only the inputs of the layers are kept, and the rest is computed again (Chen
            et al. 2016, arXiv 1604.06174).
    """

    layers: Sequence[Layer]
    recomputes: bool = field(default=False, kw_only=True)

    def run(self, x: Tensor, states: Sequence[LayerState], call: Call) -> tuple[Tensor, list[LayerState]]:
        """Stream [B, t, D] and states after all layers."""
        after, below, record = [], None, call.probe.record
        for index, (layer, state) in enumerate(zip(self.layers, states, strict=True)):
            wanted = call.wanted if index == len(self.layers) - 1 else EVERY
            mixed = self.apply(layer, self.into(x, index, call), state, call.at(layer_place(index), wanted), below)
            x, below = mixed.out, mixed.logits
            after.append(mixed.state)
            if record is not None and record.streams is not None:
                record.streams.append(chosen(x, call.wanted) if wanted is EVERY else x)
        return x, after

    def apply(self, layer: Layer, x: Tensor, state: LayerState, call: Call, below: Tensor | None) -> Mixed:
        """The layer; a second run, in the backward pass, draws the same random numbers and tells nobody."""
        if not (self.recomputes and torch.is_grad_enabled()):
            mixed: Mixed = layer(x, state, call, below)
            return mixed
        calls = iter((call,))

        def run(x: Tensor, below: Tensor | None) -> Mixed:
            mixed: Mixed = layer(x, state, next(calls, None) or call.unheard(), below)
            return mixed

        mixed = checkpoint(run, x, below, use_reentrant=False)
        return mixed

    def into(self, x: Tensor, index: int, call: Call) -> Tensor:
        """Input of the layer at ``index``."""
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
