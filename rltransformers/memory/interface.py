"""Interface of memories: their rows for attention, and the row arithmetic that all kinds share.

Axes: B batch, T tokens, R memory rows present, S slots of a ring, N slots, D model width, E key row width, n sinks.

Three forms of a state, all of fixed size. For *training* it holds layer inputs, oldest first ("hidden"). For *acting*
it holds rings ("hidden_ring", "key_ring"): a token is written into the slot ``clock % S`` and nothing else moves. *Rows
with keys* ("hidden" and "keys", oldest first) stand between the two: a segment that continues from acting. A ring has
room for the tokens of one environment step besides the window, which the first of these tokens still sees.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rltransformers.attention.reach import Reach
from rltransformers.attention.store import Store
from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Feature, Spec, Traits
from rltransformers.functional import windows
from rltransformers.functional.call import Call, Tokens
from rltransformers.functional.keys import At, Group, Past, Ring, Rows
from rltransformers.mixers.interface import Dims, LayerState

Places = Callable[[], Int[Tensor, "*b S"]]
"""Tells the episode positions of rows, to those who ask; of rows that belong to another episode it tells anything."""

Project = Callable[[Tensor, Places], Tensor]
"""Layer inputs [B, S, D] at places to key rows [B, S, E], with today's weights (normalization included)."""

Cached = bool | Literal["only"]
"""Value of a ``Form``, as calls write it."""

RINGS = {"hidden": "hidden_ring", "keys": "key_ring"}
"""Names of layer inputs and of key rows, oldest first, with the names of the same as rings, first axes B and S."""


class Form(Enum):
    """What a state holds: layer inputs, rings of layer inputs and of their key rows, or rings of key rows alone."""

    TRAINING = False
    ACTING = True
    KEYS_ONLY = "only"


@dataclass(frozen=True)
class MemoryOptions:
    """Options of a memory: none, unless it has a record of its own."""

    def reach(self, memory: int) -> Reach | None:
        """Visible rows of a layer that may see ``memory`` steps back, where patterns have no say in it."""

    def layer_with_store(self, able: Sequence[int], layers: int) -> int | None:
        """The layer, of those that are ``able``, that reads a store behind its window; None where none does."""

    def build_store(self, dims: Dims) -> Store:
        """The store of that layer."""
        raise NotImplementedError("a memory with a store defines build_store")


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
class Remembered:
    """Result of a memory.

    Attributes:
        past: all that the tokens may look at.
        state: after the call.
        compressed: what attention should not notice the difference of, or None.
    """

    past: Past
    state: LayerState
    compressed: Compressed | None = None


class RowMemory(nn.Module):
    """One layer's memory: fixed-size state in, fixed-size state out.

    It keeps the last ``rows`` rows: layer inputs, beside their keys while acting; without ``stores_inputs`` keys only,
    as they were computed.

    Attributes:
        slots: S, with room for the tokens that one step of acting brings.
        farthest: largest distance of what is kept beside rows.
        reach: distances 0 .. reach - 1 from a token to anything it sees.
    """

    farthest = 0

    def __init__(
        self, rows: int, width: int, key_width: int, sinks: int, tokens_per_step: int, stores_inputs: bool
    ) -> None:
        super().__init__()
        self.rows, self.width, self.key_width, self.sinks = rows, width, key_width, sinks
        self.stores_inputs, self.slots = stores_inputs, rows + tokens_per_step

    @property
    def reach(self) -> int:
        return max(self.slots, self.farthest) + 1

    def shapes(self, form: Form) -> dict[str, tuple[int, ...]]:
        """State tensors without the batch axis."""
        acts = form is not Form.TRAINING
        count = self.slots if acts else self.rows
        shapes: dict[str, tuple[int, ...]] = {}
        if self.stores_inputs and form is not Form.KEYS_ONLY:
            shapes[RINGS["hidden"] if acts else "hidden"] = (count, self.width)
            shapes |= {"sinks": (self.sinks, self.width)} if self.sinks else {}
        if acts or not self.stores_inputs:
            shapes[RINGS["keys"] if acts else "keys"] = (count, self.key_width)
            shapes |= {"sink_keys": (self.sinks, self.key_width)} if self.sinks else {}
        return shapes

    def with_keys(self, state: LayerState, project: Project, before: Int[Tensor, " B"]) -> LayerState:
        """Rows with keys of a training state whose last token has the position ``before``; with today's weights."""
        if not self.stores_inputs:
            return state
        projected = {"keys": project_rows(project, state["hidden"], before)}
        if "sinks" in state:
            projected["sink_keys"] = project_sinks(project, state["sinks"])
        return {**state, **projected}

    def without_keys(self, state: LayerState) -> LayerState:
        """Layer inputs only, where there are any; ConfigError for an acting state that dropped them."""
        if not self.stores_inputs:
            return state
        if "hidden" not in state:
            raise ConfigError('the state holds keys in place of layer inputs; begin with cached=True instead of "only"')
        return {name: value for name, value in state.items() if name not in ("keys", "sink_keys", "slot_keys")}

    def in_rings(self, state: LayerState) -> LayerState:
        """Rows with keys as the rings of a clock that stands at 0: the newest row lies in the last slot."""
        rings: LayerState = {}
        for name, value in state.items():
            if name in RINGS:
                empty = value.new_zeros(value.shape[0], self.slots - value.shape[1], value.shape[2])
                value = torch.cat([empty, value], 1)
            rings[RINGS.get(name, name)] = value
        return rings

    def in_order(self, state: LayerState, clock: Int[Tensor, ""]) -> LayerState:
        """Rows with keys, oldest first, of the rings of a state for acting."""
        ordered = {name: value for name, value in state.items() if name not in RINGS.values()}
        for name, ring in RINGS.items():
            if ring in state:
                size = state[ring].shape[1]
                slots = (clock + torch.arange(size - self.rows, size, device=clock.device)) % size
                ordered[name] = state[ring].index_select(1, slots)
        return ordered

    def forward(self, x: Tensor, keys: Tensor, state: LayerState, call: Call, project: Project) -> Remembered:
        """Rows that the tokens with inputs ``x`` and key rows ``keys`` see, and the state after them."""
        if "key_ring" in state:
            return write(state, x, keys, call)
        return advance(state, x, keys, call.tokens, project, self.rows)


# Acting


def write(state: LayerState, x: Tensor, keys: Tensor, call: Call) -> Remembered:
    """Write the tokens into the rings, and give what they see there."""
    slots, place = ring_of(state["key_ring"].shape[1], call)
    after: LayerState = {}
    for name, rows in (("key_ring", keys), ("hidden_ring", x)):
        if name in state:
            ring, rows = state[name], rows.to(state[name].dtype)
            after[name] = ring.index_copy_(1, slots, rows) if call.overwrites else ring.index_copy(1, slots, rows)
    past: Past = (Group(after["key_ring"], place),)
    if "sinks" in state:
        after["sinks"] = noted(state["sinks"], x, call.tokens)[-1]
    if "sink_keys" in state:
        each = noted(state["sink_keys"], keys, call.tokens)
        after["sink_keys"] = each[-1]
        past = (sink_group(torch.stack(each, 1), call.tokens), *past)
    return Remembered(past, after)


def ring_of(size: int, call: Call) -> tuple[Int[Tensor, "*T"], Ring]:
    """Slots of the tokens of a call in rings of ``size`` slots, and the ages of all slots after them.

    The slot of one token has no axis.
    """
    if ("ring", size) not in call.made:
        assert call.clock is not None  # a state with rings has a clock
        time, device = call.tokens.p.shape[1], call.clock.device
        newest = (call.clock if time == 1 else call.clock + (time - 1)) % size
        back = newest - torch.arange(size, device=device)
        # One division in all: machine code computes ages anew for every key that it compares.
        place = Ring(torch.where(back < 0, back + size, back), newest)
        slots = newest if time == 1 else (call.clock + torch.arange(time, device=device)) % size
        call.made["ring", size] = slots, place
    ring: tuple[Tensor, Ring] = call.made["ring", size]
    return ring


def noted(sinks: Float[Tensor, "B n X"], rows: Float[Tensor, "B T X"], tokens: Tokens) -> list[Float[Tensor, "B n X"]]:
    """The sinks as every token finds them: a token among the first n of its episode becomes one."""
    order = torch.arange(sinks.shape[1], device=sinks.device)
    by_token = []
    for row, p in zip(rows.to(sinks.dtype).unbind(1), tokens.p.unbind(1), strict=True):
        sinks = torch.where((p[:, None] == order)[..., None], row[:, None], sinks)
        by_token.append(sinks)
    return by_token


def sink_group(sinks: Float[Tensor, "B T n E"], tokens: Tokens) -> Group:
    """Sinks of every token, as far as its episode has them."""
    away = tokens.p[..., None] - torch.arange(sinks.shape[2], device=sinks.device)
    return Group(sinks, At(away, away >= 0, outside=True))


# Segments


def place_sinks(row: Tensor, order: Tensor) -> Tensor:
    """A sink older than the rows comes from its own place in front; one that does not exist yet comes from anywhere."""
    return torch.where(row >= 0, row + len(order), order.expand_as(row))


def keep_sinks(sinks: Float[Tensor, "B n X"], rows: Float[Tensor, "B S X"], tokens: Tokens) -> Float[Tensor, "B n X"]:
    """The sinks of the episode that the last valid token belongs to."""
    count, memory = sinks.shape[1], rows.shape[1] - tokens.p.shape[1]
    order = torch.arange(count, device=rows.device)
    row = tokens.last_row(memory)[:, None] - tokens.last_position()[:, None] + order
    return windows.take_rows(torch.cat([sinks, rows], 1), place_sinks(row, order))


def advance(state: LayerState, x: Tensor, keys: Tensor, tokens: Tokens, project: Project, rows: int) -> Remembered:
    """Key rows of memory and tokens, and the state with the tokens appended."""
    after: LayerState = {}
    if "keys" in state:
        all_keys, after["keys"] = joined(state["keys"], keys, tokens, rows)
    else:
        old = state["hidden"]
        all_keys = torch.cat([project_rows(project, old, tokens.before), keys], 1) if old.shape[1] else keys
    memory = all_keys.shape[1] - x.shape[1]
    if "hidden" in state:
        inputs, after["hidden"] = joined(state["hidden"], x, tokens, rows)
        if "sinks" in state:
            after["sinks"] = keep_sinks(state["sinks"], inputs, tokens)
    past: Past = (Group(all_keys, Rows()),)
    if "sinks" in state or "sink_keys" in state:
        first = state["sink_keys"] if "sink_keys" in state else project_sinks(project, state["sinks"])
        if "sink_keys" in state:
            after["sink_keys"] = keep_sinks(first, all_keys, tokens)
        order = torch.arange(first.shape[1], device=x.device)
        row = memory + torch.arange(x.shape[1], device=x.device)[:, None] - tokens.p[..., None] + order
        sinks = windows.take_rows(torch.cat([first, all_keys], 1), place_sinks(row, order))
        past = (sink_group(sinks, tokens), *past)
    return Remembered(past, after)


def project_rows(project: Project, rows: Float[Tensor, "B R D"], before: Int[Tensor, " B"]) -> Float[Tensor, "B R E"]:
    """Keys of the rows up to the position ``before``."""
    return project(rows, lambda: windows.positions_behind(before, rows.shape[1]))


def project_sinks(project: Project, sinks: Float[Tensor, "B n D"]) -> Float[Tensor, "B n E"]:
    """Keys of the first tokens of an episode."""
    return project(sinks, lambda: torch.arange(sinks.shape[1], device=sinks.device))


def joined(past: Tensor, rows: Tensor, tokens: Tokens, keep: int) -> tuple[Tensor, Tensor]:
    """``[past ; rows]`` and the newest ``keep`` valid rows of it."""
    # Inside the forward pass of a reversible layer the rows must not leave as a view of its input.
    alone = past.shape[1] == 0 and torch.is_grad_enabled()
    whole = rows if alone else torch.cat([past, rows], 1)
    newest = tokens.newest_rows(whole, keep)
    viewed = keep < whole.shape[1] and (keep == 0 or tokens.length is None)
    return whole, newest.clone() if viewed else newest  # a view would keep the whole segment alive as long as the state


# Kinds that keep rows alone


def build_rows(
    rows: int,
    width: int,
    key_width: int,
    sinks: int,
    tokens_per_step: int,
    options: MemoryOptions,
    stores_inputs: bool = True,
) -> RowMemory:
    """Build a memory of the newest ``rows`` tokens."""
    return RowMemory(rows, width, key_width, sinks, tokens_per_step, stores_inputs)


build_cache = partial(build_rows, stores_inputs=False)
CACHE = Spec(
    "M0", "cache", "memory_kind", "-",
    "Keeps keys and values as they were computed; an update does not compute them again.", build_cache, MemoryOptions,
    traits=Traits(horizon="memory", state="memory kv_heads (Dh + Dv)"), needs=(Feature.ROWS,),
    formula="k, v of the last `memory` steps, as they were computed",
)  # fmt: skip
TRANSFORMER_XL = Spec(
    "M1", "transformer_xl", "memory_kind", "Dai et al. 2019, arXiv 1901.02860, section 3.2",
    "Keeps the inputs of layers; an update computes keys and values again with its weights, without a gradient to"
    " the inputs.",
    build_rows, MemoryOptions,
    traits=Traits(
        horizon="memory", state="memory D",
        causal_form="every query sees the last memory + 1 steps instead of memory + its place in the segment",
    ),
    formula="k, v of [SG(inputs of the last `memory` steps); own inputs]",
)  # fmt: skip
