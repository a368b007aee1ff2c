"""Tokens leave the stack after some layer, with their state. Axes: B batch, T tokens, D model width, N layers."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rltransformers.blocks.leaving import Drawn, Leaving
from rltransformers.core.record import Probe, Record
from rltransformers.functional.call import EVERY, NOBODY, Call, chosen
from rltransformers.functional.modules import masked_mean
from rltransformers.mixers.interface import LayerState
from rltransformers.stacks.plain import Plain


@dataclass(frozen=True)
class Exits(Plain):
    """A token that has left is the input of all deeper layers as it was then, so that later tokens can look at it.

    Whether a token leaves depends on itself and its past alone, so a segment equals its steps; an update decides anew
    with its own weights, and no gradient flows through the decision. Where all streams have
    left while acting, what is left to do of deeper layers is to remember. Sources: Elbayad et al. 2020, Schuster et al.
    2022.

    Attributes:
        leaving: decides after every layer but the last.
        mixes: a call that hands out streams adds that of a pass with exits drawn token by token.
    """

    leaving: Leaving
    mixes: bool = field(default=False, kw_only=True)

    def run(self, x: Tensor, states: Sequence[LayerState], call: Call) -> tuple[Tensor, list[LayerState]]:
        record = call.probe.record
        if record is not None and record.streams is not None:
            self.hand_out(x, states, call, record)
        left = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        stays: list[Tensor] = []
        least = self.leaving.ahead(call.tokens.p)
        after: list[LayerState] = []
        first, last = x, len(self.layers) - 1
        for index, state in enumerate(states):
            over = idle(left, index, call)
            wanted = NOBODY if over else call.wanted if index == last else EVERY
            mixed = self.apply(index, x, state, call.at(index, wanted))
            after.append(mixed.state)
            if over:
                x = chosen(x, call.wanted) if index == last else x
                continue
            has_left = chosen(left, wanted)
            before, x = x, torch.where(has_left[..., None], chosen(x, wanted), mixed.out)
            first = x if index == 0 else first
            if index < last:
                left = left | self.leaving(index, before, x, first, least)
                stays += [~left] if call.probe.listens else []
        if call.probe.listens:
            used = sum(stays, torch.ones_like(left, dtype=x.dtype))
            call.probe.at("exits").metric("layers", masked_mean(used, call.tokens.valid()))
        return x, after

    def hand_out(self, x: Tensor, states: Sequence[LayerState], call: Call, record: Record) -> None:
        """The streams of a pass in which nobody leaves, and what the predictor makes of them, for ``Record``.

        All positions are aligned: each layer sees what the layer below made of every token (Elbayad et al. 2020,
        section 3.1); or every token leaves after a layer of its own (mixed, section 3.2).
        """
        aside = Record(streams=[])
        every = replace(call, probe=Probe(aside), wanted=EVERY)
        super().run(x, states, every)
        streams = aside.streams or []
        record.streams = [chosen(stream, call.wanted) for stream in streams]
        if self.mixes:
            drawn = replace(self, leaving=Drawn(draw(x, len(self.layers))), mixes=False)
            record.random_exits, _ = drawn.run(x, states, call.silent())
        record.exits = chosen(self.leaving.predictions(streams), call.wanted)


def draw(x: Float[Tensor, "B T D"], layers: int) -> Int[Tensor, "B T"]:
    """A layer for every token, all alike probable, from the numbers of the stream: a resumed run draws the same."""
    seed = int(x.detach().double().sum().cpu().view(torch.int64)) % 2**63
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(layers, x.shape[:2], generator=generator, device="cpu").to(x.device)


def idle(left: Bool[Tensor, "B T"], index: int, call: Call) -> bool:
    """True if all streams have left: the layer only updates its memory. Only in eager acting on the CPU."""
    if index == 0 or not call.overwrites or left.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    return bool(left.all())
