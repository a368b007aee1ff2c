"""Reversible layers: two streams, inputs recomputed from outputs in the backward pass (Gomez et al. 2017, Kitaev 2020).

Axes: B batch, T tokens, D model width. y1 = x1 + Mix(x2), y2 = x2 + FF(y1); both submodules normalize their input.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import get_device_states, set_device_states

from rltransformers.blocks.layer import Layer
from rltransformers.functional.call import EVERY, Call, chosen
from rltransformers.functional.modules import add_optional
from rltransformers.mixers.interface import LayerState, Mixed

Half = Callable[[Tensor], Tensor]
RngState = tuple[Tensor, list[int], list[Tensor]]


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


class ReversibleLayer(torch.autograd.Function):
    """One layer that stores nothing unless it is the last: the layer above leaves its rebuilt inputs in ``inputs``.

    Arguments: mix and transform (each a function of one stream), the list through which rebuilt streams travel down,
    whether this is the last layer, the two streams, and every parameter, so that gradients are returned and not written
    behind autograd's back. Random numbers and autocast are replayed.
    """

    @staticmethod
    def forward(
        ctx: Any,
        mix: Half,
        transform: Half,
        inputs: list[Tensor],
        last: bool,
        x1: Tensor,
        x2: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ctx.mix, ctx.transform, ctx.inputs, ctx.parameters = mix, transform, inputs, parameters
        kind = x1.device.type
        ctx.autocast = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        ctx.rng_mix = _rng_state(x1)
        y1 = x1 + mix(x2)
        ctx.rng_transform = _rng_state(x1)
        y2 = x2 + transform(y1)
        if last:
            ctx.save_for_backward(y1, y2)
        return y1, y2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy1: Tensor, dy2: Tensor) -> tuple[Tensor | None, ...]:
        """Rebuild the inputs from the outputs left by the layer above, then differentiate each half."""
        y1, y2 = ctx.saved_tensors or ctx.inputs
        y1 = y1.detach().requires_grad_()
        with torch.autocast(*ctx.autocast):
            value, through, gradients = _differentiate(ctx.transform, y1, dy2, ctx.parameters, ctx.rng_transform)
            x2 = (y2 - value).detach().requires_grad_()
            dy1 = dy1 + through
            value, through, mix_gradients = _differentiate(ctx.mix, x2, dy1, ctx.parameters, ctx.rng_mix)
        ctx.inputs[:] = [(y1 - value).detach(), x2.detach()]
        summed = [add_optional(a, b) for a, b in zip(gradients, mix_gradients, strict=True)]
        return None, None, None, None, dy1, dy2 + through, *summed


def _differentiate(
    half: Half, x: Tensor, d_out: Tensor, parameters: tuple[Tensor, ...], rng: RngState
) -> tuple[Tensor, Tensor, list[Tensor | None]]:
    """Output of a half, gradient of its input, and those of the parameters: None for what is frozen or not used."""
    learning = [each for each in parameters if each.requires_grad]
    cpu, devices, states = rng
    with torch.random.fork_rng(devices=devices), torch.enable_grad():
        torch.set_rng_state(cpu)
        set_device_states(devices, states)
        out = half(x)
        if not out.requires_grad:
            return out, torch.zeros_like(x), [None for _ in parameters]
        dx, *rest = torch.autograd.grad(out, [x, *learning], d_out, allow_unused=True)
    learned = iter(rest)
    gradients = [next(learned) if each.requires_grad else None for each in parameters]
    return out.detach(), torch.zeros_like(x) if dx is None else dx, gradients


def _rng_state(x: Tensor) -> RngState:
    devices, states = get_device_states(x)
    return torch.get_rng_state(), list(devices), list(states)
