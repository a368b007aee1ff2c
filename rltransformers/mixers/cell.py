"""Base of cells that walk from token to token, and the runs of tokens along which they do.

Axes: B batch, T tokens, D width, U units, G gates of all units, N tokens of a segment, L places in its longest run,
R runs of tokens of one episode.
"""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from rltransformers.core.spec import Size
from rltransformers.functional.call import Call, Tokens, chosen
from rltransformers.functional.modules import wide_type
from rltransformers.mixers.interface import Dims, LayerState, Mixed, StateMixer

FEW = 16
"""Tokens up to which a call is a loop over the cell, which exporters and compilers follow."""


@dataclass(frozen=True)
class CellOptions:
    """Options of a cell.

    Attributes:
        units: numbers that it hands from token to token; None takes D.
    """

    units: Size | None = None


@dataclass(frozen=True)
class Runs:
    """A segment cut where episodes and padding begin, its runs side by side: the order of packed sequences.

    Attributes:
        order, back: tokens place by place of their runs, longer runs first; and where each token went.
        sizes: runs that have a token at each place, on the CPU.
        row, fresh: stream of a run, and whether it begins without a past.
        last: the run of the last valid token of each stream.
        empty: the stream has no valid token.
    """

    order: Int[Tensor, " N"]
    back: Int[Tensor, " N"]
    sizes: Int[Tensor, " L"]
    row: Int[Tensor, " R"]
    fresh: Bool[Tensor, "R 1"]
    last: Int[Tensor, " B"]
    empty: Bool[Tensor, "B 1"]

    @staticmethod
    def of(tokens: Tokens) -> "Runs":
        """The runs of a segment; padding is one of its own."""
        valid, length = tokens.valid(), tokens.valid().sum(1)
        begins = valid & (tokens.p == 0)
        begins[:, 1:] |= valid[:, :-1] & ~valid[:, 1:]
        begins[:, 0] = True
        run = begins.flatten().cumsum(0) - 1
        first = begins.flatten().nonzero()[:, 0]
        place = torch.arange(len(run), device=run.device) - first[run]
        longer_first = run.bincount().argsort(descending=True, stable=True)
        rank = longer_first.argsort()[run]
        order = (place * len(first) + rank).argsort()
        first = first[longer_first]
        last = rank.view_as(valid).gather(1, (length[:, None] - 1).clamp(min=0))[:, 0]
        fresh = tokens.p.flatten()[first] == 0
        row = first // valid.shape[1]
        return Runs(order, order.argsort(), place.bincount().cpu(), row, fresh[:, None], last, (length == 0)[:, None])


def in_one_piece(weights: list[Tensor]) -> list[Tensor]:
    """The weights as parts of one tensor, as cuDNN wants them; it would copy them itself, with a warning."""
    whole = torch.cat([weight.flatten() for weight in weights])
    parts = whole.split([weight.numel() for weight in weights])
    return [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]


class Cell(StateMixer):
    """``state_t = cell(x_t, state_(t-1))``; what the layer gives is made of the first tensor of the state.

    A step is one cell. A segment is a walk along all episodes in it, side by side. One token waits for the one before:
    work is linear in T, but so is time, on any device.

    Attributes:
        names: of the tensors of the state, U numbers each.
    """

    names: tuple[str, ...]

    def __init__(self, dims: Dims, units: int) -> None:
        super().__init__()
        self.units = units
        self.out = dims.projection(units, dims.width)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """U numbers by name."""
        return dict.fromkeys(self.names, (self.units,))

    @abstractmethod
    def weights(self) -> list[Tensor]:
        """Weights of the token [G, D], those of the state, biases [G], and what else the cell has."""

    @abstractmethod
    def advance(self, inputs: Float[Tensor, "B G"], state: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
        """The state after a token, of what the token says to the gates and of the state before."""

    def walk(
        self, x: Float[Tensor, "N D"], sizes: Int[Tensor, " L"], state: list[Tensor], weights: list[Tensor]
    ) -> tuple[Float[Tensor, "N U"], list[Tensor]]:
        """First tensors of the states along packed runs, and the last states of the R runs."""
        outputs, ends = [], []
        for inputs in F.linear(x, weights[0], weights[2]).split(sizes.tolist()):
            ends.append([x[len(inputs) :] for x in state])
            state = self.advance(inputs, [x[: len(inputs)] for x in state], weights)
            outputs.append(state[0])
        ends.append(state)
        return torch.cat(outputs), [torch.cat(parts[::-1]) for parts in zip(*ends, strict=True)]

    def project(self, rows: Float[Tensor, "B t U"]) -> Float[Tensor, "B t D"]:
        """What the layer gives."""
        out: Tensor = self.out(rows)
        return out

    def forward(self, h: Float[Tensor, "B T D"], state: LayerState, call: Call) -> Mixed:
        dtype = wide_type(h, state[self.names[0]])
        before = [state[name].to(dtype) for name in self.names]
        weights = [weight.to(dtype) for weight in self.weights()]
        read = self.by_token if h.shape[1] <= FEW else self.by_run
        with torch.autocast(h.device.type, enabled=False):
            rows, after = read(h.to(dtype), before, weights, call)
        return Mixed(self.project(chosen(rows, call.wanted).to(h.dtype)), dict(zip(self.names, after, strict=True)))

    def by_token(
        self, x: Float[Tensor, "B T D"], before: list[Tensor], weights: list[Tensor], call: Call
    ) -> tuple[Float[Tensor, "B T U"], list[Tensor]]:
        """One token after the other."""
        begins, state, states = (call.tokens.p == 0)[..., None], before, []
        for t, inputs in enumerate(F.linear(x, weights[0], weights[2]).unbind(1)):
            state = self.advance(inputs, [old.masked_fill(begins[:, t], 0.0) for old in state], weights)
            states.append(state)
        rows = [torch.stack(tensors, 1) for tensors in zip(*states, strict=True)]
        return rows[0], [call.tokens.last(new, old) for new, old in zip(rows, before, strict=True)]

    def by_run(
        self, x: Float[Tensor, "B T D"], before: list[Tensor], weights: list[Tensor], call: Call
    ) -> tuple[Float[Tensor, "B T U"], list[Tensor]]:
        """All runs side by side; every layer uses the same ones."""
        if "runs" not in call.made:
            call.made["runs"] = Runs.of(call.tokens)
        runs: Runs = call.made["runs"]
        state = [old[runs.row].masked_fill(runs.fresh, 0.0) for old in before]
        rows, after = self.walk(x.flatten(0, 1)[runs.order], runs.sizes, state, weights)
        ends = [torch.where(runs.empty, old, new[runs.last]) for old, new in zip(before, after, strict=True)]
        return rows[runs.back].unflatten(0, x.shape[:2]), ends
