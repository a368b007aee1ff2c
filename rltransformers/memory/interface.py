"""What a memory hands to attention, and the row arithmetic that all kinds share.

Axes: B batch, T tokens, R memory rows present, M memory rows kept, S = R + T, N slots, D model width, E key row width,
n sinks. A training state holds layer inputs ("hidden"); an acting state holds their projections ("keys") as well.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rltransformers.core.record import Record
from rltransformers.functional import windows
from rltransformers.functional.windows import Tokens
from rltransformers.memory.room import append

Project = Callable[[Tensor], Tensor]
"""Layer inputs [B, S, D] to key rows [B, S, E], with today's weights (normalisation included)."""

LayerState = dict[str, Tensor]

Cached = bool | Literal["only"]
"""Whether a state holds key rows: not (training), beside layer inputs, or in place of them."""


@dataclass(frozen=True)
class Compressed:
    """Blocks that were compressed in this call, for losses that compare what attention makes of both.

    Attributes:
        blocks: raw layer inputs [B, N, c, D], no gradient.
        vectors: what they became [B, N, D], with the gradient of the compression.
        exists: False where a row has fewer blocks than N.
    """

    blocks: Float[Tensor, "B N c D"]
    vectors: Float[Tensor, "B N D"]
    exists: Bool[Tensor, "B N"]


@dataclass(frozen=True)
class Past:
    """All that a layer may look at.

    Attributes:
        rows: key rows of ``[memory ; tokens]``, [B, S, E].
        sinks: key rows of the first tokens of each token's episode, [B, T, n, E], or None.
        slots: compressed layer inputs [B, N, D], or None; with their distances and visibility [B, T, N].
        compressed: what attention should not notice the difference of, or None.
    """

    rows: Float[Tensor, "B S E"]
    sinks: Float[Tensor, "B T n E"] | None = None
    slots: Float[Tensor, "B N D"] | None = None
    slot_distance: Int[Tensor, "B T N"] | None = None
    slot_visible: Bool[Tensor, "B T N"] | None = None
    compressed: Compressed | None = None


class Memory(Protocol):
    """One layer's memory: fixed-size state in, fixed-size state out."""

    stores_inputs: bool

    def shapes(self, cached: Cached) -> dict[str, tuple[int, ...]]:
        """State tensors without the batch axis."""

    def __call__(
        self, x: Tensor, keys: Tensor, state: LayerState, tokens: Tokens, project: Project, record: Record | None
    ) -> tuple[Past, LayerState]:
        """What the tokens with inputs ``x`` and key rows ``keys`` see, and the state after them."""


class RowMemory(nn.Module):
    """The last ``rows`` rows: layer inputs (and their keys while acting), or, without ``stores_inputs``, keys only."""

    def __init__(self, rows: int, width: int, key_width: int, sinks: int, stores_inputs: bool) -> None:
        super().__init__()
        self.rows, self.width, self.key_width, self.sinks = rows, width, key_width, sinks
        self.stores_inputs = stores_inputs

    def shapes(self, cached: Cached) -> dict[str, tuple[int, ...]]:
        """State tensors without the batch axis."""
        inputs = self.stores_inputs and cached != "only"
        keys = bool(cached) or not self.stores_inputs
        return shapes(self.rows, self.width, self.key_width, self.sinks, inputs=inputs, keys=keys)

    def forward(
        self, x: Tensor, keys: Tensor, state: LayerState, tokens: Tokens, project: Project, record: Record | None
    ) -> tuple[Past, LayerState]:
        """Rows seen and state after."""
        return advance(state, x, keys, tokens, project, self.rows)


def shapes(rows: int, width: int, key_width: int, sinks: int, inputs: bool, keys: bool) -> dict[str, tuple[int, ...]]:
    """Rows and sinks, as layer inputs and/or as keys."""
    found: dict[str, tuple[int, ...]] = {}
    if inputs:
        found["hidden"] = (rows, width)
        if sinks:
            found["sinks"] = (sinks, width)
    if keys:
        found["keys"] = (rows, key_width)
        if sinks:
            found["sink_keys"] = (sinks, key_width)
    return found


def sink_index(tokens: Tokens, memory: int, count: int) -> Int[Tensor, "B T n"]:
    """Row in ``[sinks ; memory ; tokens]`` of the first ``count`` tokens of every token's episode."""
    order = torch.arange(count, device=tokens.p.device)
    t = torch.arange(tokens.p.shape[1], device=tokens.p.device)[:, None]
    return place_sinks(memory + t - tokens.p[..., None] + order, order, memory + tokens.p.shape[1])


def place_sinks(row: Tensor, order: Tensor, rows: int) -> Tensor:
    """A sink older than the rows comes from its own place in front; one that does not exist yet comes from anywhere."""
    return torch.where(row >= 0, row.clamp(max=rows - 1) + len(order), order.expand_as(row))


def keep_sinks(sinks: Float[Tensor, "B n X"], rows: Float[Tensor, "B S X"], tokens: Tokens) -> Float[Tensor, "B n X"]:
    """The sinks of the episode that the last valid token belongs to."""
    count, memory = sinks.shape[1], rows.shape[1] - tokens.p.shape[1]
    order = torch.arange(count, device=rows.device)
    row = tokens.last_row(memory)[:, None] - tokens.last_position()[:, None] + order
    return windows.take_rows(torch.cat([sinks, rows], 1), place_sinks(row, order, rows.shape[1]))


def advance(
    state: LayerState, x: Tensor, keys: Tensor, tokens: Tokens, project: Project, rows: int
) -> tuple[Past, LayerState]:
    """Key rows of memory and tokens, and the state with the tokens appended."""
    if "keys" in state:
        all_keys, kept_keys = joined(state["keys"], keys, tokens, rows)
    else:
        all_keys = torch.cat([project(state["hidden"]), keys], 1) if state["hidden"].shape[1] else keys
    after: LayerState = {}
    memory = all_keys.shape[1] - x.shape[1]
    if "hidden" in state:
        inputs, after["hidden"] = joined(state["hidden"], x, tokens, rows)
        if "sinks" in state:
            after["sinks"] = keep_sinks(state["sinks"], inputs, tokens)
    if "keys" in state:
        after["keys"] = kept_keys
    sinks = None
    if "sinks" in state or "sink_keys" in state:
        first = state["sink_keys"] if "sink_keys" in state else project(state["sinks"])
        if "sink_keys" in state:
            after["sink_keys"] = keep_sinks(first, all_keys, tokens)
        index = sink_index(tokens, memory, first.shape[1])
        sinks = windows.take_rows(torch.cat([first, all_keys], 1), index.flatten(1)).unflatten(1, index.shape[1:])
    return Past(all_keys, sinks), after


def joined(past: Tensor, rows: Tensor, tokens: Tokens, keep: int) -> tuple[Tensor, Tensor]:
    """``[past ; rows]`` and the newest ``keep`` valid rows of it."""
    if tokens.length is None and past.shape[1] == keep:
        return append(past, rows)
    # Inside the forward pass of a reversible layer the rows must not leave as a view of its input.
    alone = past.shape[1] == 0 and torch.is_grad_enabled()
    whole = rows if alone else torch.cat([past, rows], 1)
    return whole, windows.last_rows(whole, keep, tokens)
