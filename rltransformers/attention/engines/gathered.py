"""Attention over a few keys per query: fetch them, then compute as ``dense`` does; work grows as T C, not as T S.

Axes: B batch, H heads, T tokens, N key rows, C chosen keys, X width of a key or a value.
"""

from jaxtyping import Float, Int
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
