"""Blocks of an episode: borders stand at multiples of b from its start, wherever a call begins.

Axes: B batch, T tokens, S key rows, n blocks of a call, b tokens of a block, N slots or rows, c chunks of a call, H
heads, L earlier blocks, E or X numbers of a row. A slot stands for ``size`` tokens, the next one for those ``stride``
tokens later.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rltransformers.functional import windows
from rltransformers.functional.call import Tokens


@dataclass(frozen=True)
class Blocks:
    """The blocks that the tokens of a call lie in, in order, padded to the same count n in every batch row.

    Attributes:
        start: row of ``[memory ; tokens]`` with the first token of a block.
        number: completed blocks before it in its episode.
        of_token, place: block of every token, and its place 0 ... b - 1 inside.
    """

    start: Int[Tensor, "B n"]
    number: Int[Tensor, "B n"]
    of_token: Int[Tensor, "B T"]
    place: Int[Tensor, "B T"]


def episode_blocks(p: Int[Tensor, "B T"], memory: int, block: int) -> Blocks:
    """Cut the tokens into blocks of ``block`` positions, anchored to p; a new episode opens a new block."""
    place = p % block
    opens = place == 0
    opens[:, 0] = True
    of_token = opens.cumsum(1) - 1
    # A few tokens need no look at the data: acting does not wait for the device, and can be traced.
    count = int(of_token[:, -1].max()) + 1 if p.shape[1] > windows.FEW_TOKENS else p.shape[1]
    rows = memory + torch.arange(p.shape[1], device=p.device) - place
    # All tokens of a block write the same numbers.
    start = p.new_zeros(p.shape[0], count).scatter(1, of_token, rows)
    number = p.new_zeros(p.shape[0], count).scatter(1, of_token, p // block)
    return Blocks(start, number, of_token, place)


def ends_of_slots(
    p: Int[Tensor, "B T"], before: Int[Tensor, " B"], size: int, stride: int, slots: int
) -> tuple[Int[Tensor, "B N"], Int[Tensor, "B T"]]:
    """Last tokens of complete slots, oldest first, and how many of them the call completes up to a token.

    They are counted from the first token of the call: -1 is the token in front of it. First come the last ``slots``
    slots of the episode that the call continues, then those that the call completes; what is left lies behind it.
    """
    time = p.shape[1]
    place = torch.arange(time, device=p.device)
    behind = before[:, None] - (size - 1)
    old = -1 - behind % stride - stride * windows.descending(slots, p.device)
    complete = (p >= size - 1) & ((p - (size - 1)) % stride == 0)
    done = complete.cumsum(1)
    most = -(-time // stride)
    new = p.new_full((p.shape[0], most + 1), time)
    new = new.scatter(1, torch.where(complete, done - 1, most), place.expand_as(p))
    return torch.cat([old, new[:, :most]], 1), done


def newest_slots(
    ends: Int[Tensor, "B N"], done: Int[Tensor, "B T"], tokens: Tokens, size: int, count: int
) -> Int[Tensor, "B n"]:
    """Which ``count`` slots of ``ends_of_slots`` the last valid token has behind it; -1 where its episode has fewer."""
    completed = tokens.last(done, torch.zeros_like(tokens.before))[:, None]
    order = completed + torch.arange(count, device=ends.device)
    age = tokens.last_row(0)[:, None] - ends.gather(1, order)
    return order.masked_fill(age + size - 1 > tokens.last_position()[:, None], -1)


def slots_of_chunks(
    slots: Float[Tensor, "B N *E"], ends: Int[Tensor, "B N"], done: Int[Tensor, "B T"], chunk: int, count: int
) -> tuple[Float[Tensor, "Bc n *E"], Int[Tensor, "Bc n"]]:
    """The ``count`` slots of every chunk of a call from the first on that its first token sees; chunks are batch rows.

    Args:
        slots, ends, done: as ``ends_of_slots``, of all tokens.
    """
    completed = torch.nn.functional.pad(done, (1, 0))[:, :-1:chunk]  # before each chunk
    order = completed[..., None] + torch.arange(count, device=ends.device)
    first = chunk * torch.arange(order.shape[1], device=ends.device)[:, None]
    return windows.take_rows(slots, order).flatten(0, 1), (windows.take_rows(ends, order) - first).flatten(0, 1)


def inside_block(
    rows: Float[Tensor, "B T n"], place: Int[Tensor, "B T"], distance: Int[Tensor, " L"]
) -> Float[Tensor, "B T L"]:
    """``rows[t, place_t - d]``: the numbers that tokens have for the places of their block; 0 in front of it."""
    source = place[..., None] - distance
    return rows.gather(-1, source.clamp(min=0)).masked_fill(source < 0, 0.0)


def earlier_blocks(
    rows: Float[Tensor, "B H N X"], start: Int[Tensor, "B n"], number: Int[Tensor, "B n"], block: int, count: int
) -> tuple[Float[Tensor, "B H n L b X"], Bool[Tensor, "B n L"]]:
    """The ``count`` blocks in front of those that begin at row ``start``, oldest first, and which of them there are.

    Args:
        number: completed blocks of the episode before each (``Blocks``).
    """
    steps = torch.arange(count, 0, -1, device=rows.device)
    first = start[..., None] - block * steps
    index = (first[..., None] + torch.arange(block, device=rows.device)).clamp(0, rows.shape[2] - 1)
    found = windows.fetch(rows, index.flatten(2)[:, None]).unflatten(3, index.shape[2:])
    return found, (steps <= number[..., None]) & (first >= 0)
