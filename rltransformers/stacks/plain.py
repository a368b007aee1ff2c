"""Layers in turn: each its own, or one again and again. Axes: B batch, T tokens, D model width."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rltransformers.blocks.layer import Layer
from rltransformers.functional.call import EVERY, Call, chosen
from rltransformers.mixers.interface import LayerState, Mixed
from rltransformers.positions.interface import sinusoid

Embed = Callable[[Tensor, Call], Tensor]
"""The stream with the encodings that act on the input of a layer."""


@dataclass(frozen=True)
class Plain:
    """Every layer once; the last one gives the wanted tokens.

    Attributes:
        layers: the layer of every application.
        embed: adds positions in front of every application of one layer, which is told its number as well (Dehghani et
            al. 2019, arXiv 1807.03819, equation 6); None for layers of their own.
        recomputes: for the backward pass only the inputs of the layers are kept, and the rest is computed again (Chen
            et al. 2016, arXiv 1604.06174).
    """

    layers: Sequence[Layer]
    embed: Embed | None = field(default=None, kw_only=True)
    recomputes: bool = field(default=False, kw_only=True)

    def run(self, x: Tensor, states: Sequence[LayerState], call: Call) -> tuple[Tensor, list[LayerState]]:
        """Stream [B, t, D] and states after all layers."""
        after, below, record = [], None, call.probe.record
        for index, state in enumerate(states):
            wanted = call.wanted if index == len(states) - 1 else EVERY
            mixed = self.apply(index, x, state, call.at(index, wanted), below)
            x, below = mixed.out, mixed.logits
            after.append(mixed.state)
            if record is not None and record.streams is not None:
                record.streams.append(chosen(x, call.wanted) if wanted is EVERY else x)
        return x, after

    def apply(self, index: int, x: Tensor, state: LayerState, call: Call, below: Tensor | None = None) -> Mixed:
        """Apply the layer at ``index``; a second run, in the backward pass, draws the same numbers, reports nothing."""
        layer = self.layers[index]
        if self.embed is not None:
            x = self.embed(x, call)
            x = x + sinusoid(torch.full((), index + 1, device=x.device), x.shape[-1], x)
        if not (self.recomputes and torch.is_grad_enabled()):
            mixed: Mixed = layer(x, state, call, below)
            return mixed
        calls = iter((call,))

        def run(x: Tensor, below: Tensor | None) -> Mixed:
            mixed: Mixed = layer(x, state, next(calls, None) or call.unheard(), below)
            return mixed

        mixed = checkpoint(run, x, below, use_reentrant=False)
        return mixed
