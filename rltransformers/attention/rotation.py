"""Queries and keys turned by their places (RoPE and its kind); only differences of places matter.

Axes: B batch, H heads, T tokens, K head width, f pairs of channels.
"""

from dataclasses import replace

from jaxtyping import Float, Int
from torch import Tensor

from rltransformers.attention.roles import Heads
from rltransformers.functional import windows
from rltransformers.functional.call import Call
from rltransformers.functional.keys import Ring, Rows
from rltransformers.positions.interface import Position


def turn_rows(
    position: Position, q: Float[Tensor, "B H T K"], groups: list[Heads], horizon: int, call: Call
) -> tuple[Float[Tensor, "B H T K"], list[Heads]]:
    """Turn queries and keys by how far they lie behind the last token of the call."""

    def circle(behind: Int[Tensor, "*n"]) -> Float[Tensor, "*n 2 f"]:
        table = call.tables.get(f"{call.place}.circle")
        return position.circle(behind, q) if table is None else table[behind.clamp(0, len(table) - 1)]

    behind = windows.descending(q.shape[2], q.device)
    keys = [position.turn(group.k, circle(distance_back(group, behind, horizon + 1))) for group in groups]
    return position.turn(q, circle(behind)), [replace(group, k=k) for group, k in zip(groups, keys, strict=True)]


def distance_back(group: Heads, behind: Int[Tensor, " T"], edge: int) -> Int[Tensor, "..."]:
    """Tokens from the rows of a group back from the last token of the call, with the axes of its keys."""
    place = group.place
    if isinstance(place, Ring):
        return place.age
    if isinstance(place, Rows):
        return windows.descending(group.k.shape[2], group.k.device)
    if group.per_token:
        return (behind[:, None] + place.distance.clamp(max=place.farthest or edge))[:, None]
    return place.distance[:, None, -1]
