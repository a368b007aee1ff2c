"""Two streams whose layers are inverted in the backward pass. Axes: B batch, T tokens, D model width."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from rltransformers.blocks.layer import Layer
from rltransformers.blocks.reversible import ReversibleLayer
from rltransformers.functional.call import EVERY, Call, chosen
from rltransformers.mixers.interface import LayerState, Mixed


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
            here, last = call.at(index, EVERY), index == len(states) - 1
            mixing: list[LayerState] = []
            transforming: list[LayerState] = []
            mix = partial(run_half, partial(layer.mix, below=None), state, here, mixing)
            transform: Callable[[Tensor], Tensor] = layer.transform
            if layer.transform_mixes:
                transform = partial(run_half, layer.transform_over_time, state, here, transforming)
            if torch.is_grad_enabled():
                x1, x2 = ReversibleLayer.apply(mix, transform, rebuilt, last, x1, x2, *layer.parameters())
            else:
                x1 = x1 + mix(x2)
                x2 = x2 + transform(x1)
            after.append({**mixing[0], **(transforming[0] if transforming else {})})
        return chosen((x1 + x2) / 2, call.wanted), after


def run_half(
    half: Callable[[Tensor, LayerState, Call], Mixed], state: LayerState, call: Call, after: list[LayerState], x: Tensor
) -> Tensor:
    """Run a half of a layer; only its first run leaves the state in ``after`` and reports losses and metrics."""
    first = not after
    mixed = half(x, state, call if first else call.silent())
    if first:
        after.append(mixed.state)
    return mixed.out
