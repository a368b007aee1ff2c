"""Keys that a token may look at: groups of rows, and where their rows stand.

Axes: B batch, T tokens, N key rows of a group, E numbers of a key row. Memory, sinks, compressed slots, nodes of a
    tree, neighbors from a store: all are groups, and attention over several groups is one softmax over all of their
    rows.
"""

from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from rltransformers.functional import windows


@dataclass(frozen=True)
class Rows:
    """Contiguous in time and ending with the tokens of the call: row n lies d = N - T + t - n tokens before token t."""


@dataclass(frozen=True)
class Ring:
    """In the slots of a ring, all streams alike: slot n lies ``age_n - (T - 1 - t)`` tokens before token t.

    Attributes:
        age: tokens from a slot to the last token of the call.
        newest: the slot that was written last.
    """

    age: Int[Tensor, " N"]
    newest: Int[Tensor, ""]

    @property
    def oldest(self) -> Int[Tensor, ""]:
        """The slot that will be written next."""
        return (self.newest + 1) % self.age.shape[0]


@dataclass(frozen=True)
class At:
    """At a distance of its own for every token; decides alone who is seen.

    Attributes:
        distance: tokens between a query and the place a row stands for; for all heads or by head.
        visible: True where a query may look.
        farthest: the largest distance that is told apart from larger ones; None for one beyond the window's edge.
        outside: the rows are seen only where the window of the pattern does not reach, as sinks are.
        shift: added to the scaled products of queries and rows.
    """

    distance: Int[Tensor, "B *#h T N"]
    visible: Bool[Tensor, "B *#h T N"]
    farthest: int | None = None
    outside: bool = False
    shift: float = 0.0


Place: TypeAlias = Rows | Ring | At


@dataclass(frozen=True)
class Group:
    """Key rows and where they stand.

    Attributes:
        rows: [B, N, E] for all tokens, or [B, T, N, E] where every token has rows of its own.
        place: of the rows.
    """

    rows: Float[Tensor, "B *T N E"]
    place: Place

    @property
    def per_token(self) -> bool:
        """Whether every token has rows of its own."""
        return self.rows.dim() == 4


Past: TypeAlias = tuple[Group, ...]
"""All groups a layer may look at; the window of newest rows, Rows or Ring, is the last one."""


def cut_past(past: Past, block: int, horizon: int, time: int) -> Past:
    """Cut the groups of ``time`` tokens into blocks: further batch rows, each with ``horizon`` rows of past in front.

    All groups but the window belong to single tokens.
    """
    *others, window = past
    rows = window.rows
    missing = horizon - (rows.shape[1] - time)
    if missing:  # a new stream has fewer rows
        rows = F.pad(rows, (0, 0, missing, 0))
    groups = []
    for group in others:
        place = group.place
        assert isinstance(place, At)
        distance, visible = windows.fold(place.distance, block), windows.fold(place.visible, block)
        groups.append(Group(windows.fold(group.rows, block), replace(place, distance=distance, visible=visible)))
    return *groups, Group(windows.fold_keys(rows, horizon, block), Rows())


def in_order(window: Group) -> Float[Tensor, "B N E"]:
    """The rows of a window, oldest first, the tokens of the call at the end."""
    return oldest_first(window.rows, window.place, 1)


def oldest_first(rows: Tensor, place: Place, axis: int) -> Tensor:
    """Rows of a window along ``axis`` in order, the tokens of the call at the end."""
    if isinstance(place, Ring):
        slots = slots_of(torch.arange(rows.shape[axis], device=rows.device), place, rows.shape[axis])
        return rows.index_select(axis, slots)
    return rows


def slots_of(row: Int[Tensor, "*n"], place: Place, rows: int) -> Int[Tensor, "*n"]:
    """Where rows in order lie in a window of ``rows`` rows."""
    return (place.oldest + row) % rows if isinstance(place, Ring) else row
