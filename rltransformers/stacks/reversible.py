"""Two streams whose layers can be inverted, so that nothing is stored for the backward pass.

Axes: B batch, T tokens, D model width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from rltransformers.blocks.layer import Layer
from rltransformers.blocks.reversible import ReversibleLayer
from rltransformers.functional.call import EVERY, Call, chosen
from rltransformers.memory.interface import LayerState


@dataclass(frozen=True)
class Reversible:
    """y1 = x1 + Mix(x2), y2 = x2 + FF(y1) (Gomez et al. 2017, arXiv 1707.04585); the output is the streams' mean."""

    layers: Sequence[Layer]

    def run(self, x: Tensor, states: Sequence[LayerState], call: Call) -> tuple[Tensor, list[LayerState]]:
        """Stream [B, t, D] and states after all layers."""
        x1, x2 = x, x
        after: list[LayerState] = []
        rebuilt: list[Tensor] = []
        for index, (layer, state) in enumerate(zip(self.layers, states, strict=True)):
            found: list[LayerState] = []
            mix = partial(mix_once, layer, state, call.at(index, EVERY), found)
            last = index == len(states) - 1
            cache: list[LayerState] = []
            transform = layer.transform
            if layer.transform_mixes:
                transform = partial(transform_once, layer, state, call.at(index, EVERY), cache)
            if torch.is_grad_enabled():
                x1, x2 = ReversibleLayer.apply(mix, transform, rebuilt, last, x1, x2, *layer.parameters())
            else:
                x1 = x1 + mix(x2)
                x2 = x2 + transform(x1)
            after.append(found[0] | cache[0] if cache else found[0])
        return chosen((x1 + x2) / 2, call.wanted), after


def mix_once(layer: Layer, state: LayerState, call: Call, found: list[LayerState], x: Tensor) -> Tensor:
    """The mixing half; of its several runs only the first one leaves its state in ``found`` and tells anything."""
    first = not found
    mixed = layer.mix(x, state, call if first else call.silent(), None)
    if first:
        found.append(mixed.state)
    return mixed.out


def transform_once(layer: Layer, state: LayerState, call: Call, cache: list[LayerState], x: Tensor) -> Tensor:
    """The same of a transform that reads earlier tokens."""
    first = not cache
    out, after = layer.transform_over_time(x, state, call if first else call.silent())
    if first:
        cache.append(after)
    return out
