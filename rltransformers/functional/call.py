"""One call of the backbone, as every part of it sees it: its tokens, what they look at besides, who listens.

Axes: B batch, T tokens of a call, S tokens that have elements, N elements, D model width, R rows of memory and tokens.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from rltransformers.core.record import Probe
from rltransformers.functional.windows import FEW_TOKENS, fold, match_axes, rows_up_to

EVERY = slice(None)
"""All tokens."""

NOBODY = slice(0, 0)
"""No token: what is computed for outputs alone is left out, and the state goes on."""

SILENT = Probe()
"""Reports nothing."""


def chosen(x: Shaped[Tensor, "B T *n"], wanted: slice) -> Shaped[Tensor, "B t *n"]:
    """The ``wanted`` tokens; all of them cost nothing."""
    return x if wanted == EVERY else x[:, wanted]


@dataclass(frozen=True)
class Tokens:
    """Where every token of one call stands.

    Attributes:
        p: position inside the episode, 0 at its first token.
        timestep: environment step inside the episode.
        live: no episode started in this call up to and including the token, so carried state is its own past.
        before: position of the token before the call, -1 when there is none.
        length: number of valid tokens per row (the valid ones come first); None when all are valid.
        task: which task the episode is, counted from 0; None where nothing reads it.
    """

    p: Int[Tensor, "B T"]
    timestep: Int[Tensor, "B T"]
    live: Bool[Tensor, "B T"]
    before: Int[Tensor, " B"]
    length: Int[Tensor, " B"] | None = None
    task: Int[Tensor, "B T"] | None = None

    def valid(self) -> Bool[Tensor, "B T"]:
        """True for tokens that are not padding."""
        if self.length is None:
            return torch.ones_like(self.live)
        return torch.arange(self.p.shape[1], device=self.p.device) < self.length[:, None]

    def cut(self, block: int) -> "Tokens":
        """Blocks of ``block`` tokens as batch rows of their own, the last one filled up with padding."""
        p, valid = fold(self.p, block), fold(self.valid(), block)
        task = None if self.task is None else fold(self.task, block)
        return Tokens(p, fold(self.timestep, block), fold(self.live, block), p[:, 0] - 1, valid.sum(1), task)

    def repeated(self, times: int) -> "Tokens":
        """Every token as so many, one after another."""
        p = (self.p[..., None] * times + torch.arange(times, device=self.p.device)).flatten(1)
        timestep, live = (x.repeat_interleave(times, 1) for x in (self.timestep, self.live))
        task = None if self.task is None else self.task.repeat_interleave(times, 1)
        length = None if self.length is None else self.length * times
        return Tokens(p, timestep, live, (self.before + 1) * times - 1, length, task)

    def last_position(self) -> Int[Tensor, " B"]:
        """Position of the last valid token, or of the one before the call."""
        return self.last(self.p, self.before)

    def last_row(self, memory: int) -> Int[Tensor, " B"]:
        """Row of the last valid token in ``[memory ; tokens]``."""
        time = self.p.shape[1]
        length = torch.full_like(self.before, time) if self.length is None else self.length
        return memory - 1 + length

    def last(self, values: Tensor, before: Tensor) -> Tensor:
        """``values[b, length_b - 1]`` of [B, T, ...], or ``before[b]`` where the call brought no valid token."""
        if self.length is None:
            return values[:, -1].clone() if values.shape[1] > 1 else values[:, -1]  # a view would keep all tokens
        index = (self.length - 1).clamp(min=0)
        chosen = values[torch.arange(values.shape[0], device=values.device), index]
        return torch.where(match_axes(self.length == 0, chosen), before, chosen)

    def newest_rows(self, rows: Tensor, count: int) -> Tensor:
        """The newest ``count`` valid rows of ``[memory ; tokens]`` [B, S, ...]; zeros where there are fewer."""
        if count == 0:
            return rows[:, :0]
        if self.length is None:
            newest = rows[:, -count:]
            missing = count - newest.shape[1]
            if not missing:
                return newest
            return torch.cat([newest.new_zeros(newest.shape[0], missing, *newest.shape[2:]), newest], 1)
        return rows_up_to(rows, rows.shape[1] - self.p.shape[1] + self.length - 1, count)


def episode_positions(before: Int[Tensor, " B"], reset: Bool[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Position of every token inside its episode; ``before`` is that of the last token already seen (-1: none)."""
    if reset.shape[1] <= FEW_TOKENS:  # token by token: cheaper, and every compiler knows the operations
        if reset.shape[1] == 1:
            return (before[:, None] + 1).masked_fill(reset, 0)
        found = []
        for starts in reset.unbind(1):
            before = (before + 1).masked_fill(starts, 0)
            found.append(before)
        return torch.stack(found, 1)
    index = torch.arange(reset.shape[1], device=reset.device)
    start = torch.where(reset, index, -1 - before[:, None]).cummax(dim=1).values
    return index - start


@dataclass(frozen=True)
class Context:
    """Elements of tokens of one call; a token sees its own ones alone, so that nothing of the future is seen.

    Attributes:
        rows: encoded elements.
        exists: False for padding of a set; what stands there is not read.
        tokens: the tokens of the call that have elements, S of them; a token without any passes unchanged.
    """

    rows: Float[Tensor, "B S N D"]
    exists: Bool[Tensor, "B S N"]
    tokens: slice = field(default_factory=lambda: EVERY)

    def without_padding(self, valid: Bool[Tensor, "B T"] | None) -> "Context":
        """The same with zeros where nothing is to be read, as NaN times a weight of 0 is NaN."""
        read = self.exists if valid is None else self.exists & valid[:, self.tokens, None]
        return replace(self, rows=self.rows.masked_fill(~read[..., None], 0.0))

    def among(self, wanted: slice, time: int) -> "tuple[slice, Context]":
        """Where tokens with elements stand among the ``wanted`` ones of a call of ``time`` tokens, and the elements."""
        if wanted == EVERY:
            return self.tokens, self
        asked, mine = range(time)[wanted], range(time)[self.tokens]
        common = [token for token in asked if token in mine]
        own = progression([mine.index(token) for token in common], len(mine))
        there = progression([asked.index(token) for token in common], len(asked))
        return there, self if own == EVERY else Context(self.rows[:, own], self.exists[:, own], there)

    def sorted(self, order: Int[Tensor, "B T"]) -> "Context":
        """The same for tokens that are taken in another order in every stream."""
        batch, time = order.shape
        rows = self.rows.new_zeros(batch, time, *self.rows.shape[2:])
        exists = self.exists.new_zeros(batch, time, self.exists.shape[2])
        rows[:, self.tokens], exists[:, self.tokens] = self.rows, self.exists
        stream = torch.arange(batch, device=order.device)[:, None]
        return Context(rows[stream, order], exists[stream, order])

    def repeated(self, streams: int) -> "Context":
        """Every row for so many streams that read the same tokens."""
        if streams == 1:
            return self
        return Context(self.rows.repeat_interleave(streams, 0), self.exists.repeat_interleave(streams, 0), self.tokens)


def progression(places: Sequence[int], length: int) -> slice:
    """Evenly spaced places of ``length`` as a slice."""
    if len(places) == length:
        return EVERY
    if not places:
        return slice(0, 0)
    return slice(places[0], places[-1] + 1, places[1] - places[0] if len(places) > 1 else 1)


@dataclass(frozen=True)
class Call:
    """Arguments of one call that all layers share, and the record that listens to it.

    Attributes:
        tokens: the place of every token in its episode.
        probe: takes losses and metrics; tells nothing by default.
        wanted: tokens whose outputs are needed; what is computed for the others alone may be left out.
        clock: tokens that were written to the rings of the acting state before this call, one number for all rings;
            None for a state that is not a ring.
        overwrites: whether the tensors of the state belong to the call, which then writes into them.
        tables: what depends on weights and sizes alone, computed by whoever makes many calls with the same weights
            (``Backbone.tables``), by the place that uses it.
        place: name of the layer's application in tables and metrics, such as "layer0".
        made: what the first layer derives for this call and the others use again, by what it depends on.
        context: elements that tokens look at besides the stream; None where the layers read none.
    """

    tokens: Tokens
    probe: Probe = SILENT
    wanted: slice = field(default_factory=lambda: EVERY)
    clock: Int[Tensor, ""] | None = None
    overwrites: bool = False
    tables: dict[str, Tensor] = field(default_factory=dict)
    place: str = ""
    made: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)
    context: Context | None = None

    def at(self, layer: int, wanted: slice) -> "Call":
        """The same call in one application of a layer, which has to give the ``wanted`` tokens."""
        place = f"layer{layer}"
        probe = self.probe.at(place)
        return Call(  # made anew rather than replaced, which takes three times as long
            self.tokens, probe, wanted, self.clock, self.overwrites, self.tables, place, self.made, self.context
        )

    def cut(self, block: int) -> "Call":
        """Blocks of ``block`` tokens as further batch rows; nothing of a ring, of tables or of a context."""
        key = "blocks", block
        if key not in self.made:
            self.made[key] = Call(self.tokens.cut(block))
        return replace(self.made[key], probe=self.probe)

    def tell(self, name: str, values: Callable[[], Tensor]) -> None:
        """Report the mean over the valid tokens of ``values()`` [B, T, ...], which are computed for a record alone."""
        if self.probe.listens:
            with torch.no_grad():
                self.probe.metric(name, values()[self.tokens.valid()].mean())

    def silent(self) -> "Call":
        """The same call without a record."""
        return replace(self, probe=SILENT)

    def unheard(self) -> "Call":
        """A copy whose losses and metrics go to a throw-away record (second run of a checkpointed layer)."""
        return replace(self, probe=self.probe.unheard())
