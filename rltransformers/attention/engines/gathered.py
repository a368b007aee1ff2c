"""Attention over a few keys per query: fetch them, then compute as ``dense`` does; work grows as T C, not as T S.

Axes: B batch, H heads, T tokens, N key rows, C chosen keys, X width of a key or a value, n blocks of a call, L earlier
blocks, b tokens of a block.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rltransformers.attention.roles import Heads, Selected


def gathered(window: Heads, selected: Selected) -> list[Heads]:
    """The chosen rows of the window as keys of single tokens, and what the chooser made beside them."""
    k, v = (fetch(each, selected.index) for each in (window.k, window.v))
    return [*selected.others, Heads(k, v, selected.at, selected.shift)]


def fetch(rows: Float[Tensor, "B H N X"], index: Int[Tensor, "B h T C"]) -> Float[Tensor, "B H T C X"]:
    """Rows by head and token."""
    flat = index.expand(-1, rows.shape[1], -1, -1).flatten(2)
    return rows.gather(2, flat[..., None].expand(-1, -1, -1, rows.shape[-1])).unflatten(2, index.shape[2:])


def earlier_blocks(
    rows: Float[Tensor, "B H N X"], start: Int[Tensor, "B n"], number: Int[Tensor, "B n"], block: int, count: int
) -> tuple[Float[Tensor, "B H n L b X"], Bool[Tensor, "B n L"]]:
    """The ``count`` blocks in front of those that begin at row ``start``, oldest first, and which of them there are.

    Args:
        number: completed blocks of the episode before each (``functional.blocks.Blocks``).
    """
    steps = torch.arange(count, 0, -1, device=rows.device)
    first = start[..., None] - block * steps
    index = (first[..., None] + torch.arange(block, device=rows.device)).clamp(0, rows.shape[2] - 1)
    found = fetch(rows, index.flatten(2)[:, None]).unflatten(3, index.shape[2:])
    return found, (steps <= number[..., None]) & (first >= 0)
