"""The largest scores of an episode so far, several lists at once, in chunks.

Axes: B batch, H heads, T tokens, N chunks of S tokens, C lists, w places of a list.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rltransformers.functional.call import Tokens
from rltransformers.functional.chunks import Borders, chunk_sizes, in_chunks
from rltransformers.functional.recurrences import CHUNK


@dataclass(frozen=True)
class Largest:
    """Which rows of ``[lists before the call, one after the other ; tokens]`` have the largest scores.

    Attributes:
        index: rows, the one with the largest score first; any row where none exists.
        exists: False for places of a list that is longer than the episode.
    """

    index: Int[Tensor, "B H X w"]
    exists: Bool[Tensor, "B H X w"]


@torch.no_grad()
def running_largest(
    scores: Float[Tensor, "B H T C"],
    held: Float[Tensor, "B H C w"],
    asked: Int[Tensor, "B H T"],
    tokens: Tokens,
    chunk: int = CHUNK,
) -> tuple[Largest, Largest]:
    """The list that each token asks for, the tokens up to itself included; all lists at the last valid token.

    Args:
        scores: of every token in every list.
        held: scores of the lists before the call, -inf at empty places.
        asked: the list that a token looks at.
    """
    batch, heads, lists, width = held.shape
    count, size = chunk_sizes(scores.shape[2], chunk)
    borders = Borders.of(tokens, count, size)
    parts = in_chunks(scores, count, size).transpose(-1, -2)
    asking = in_chunks(asked[..., None], count, size)
    total = lists * width + scores.shape[2]
    rows = torch.arange(lists * width + count * size, device=scores.device).clamp(max=total - 1)  # chunks are padded
    held_rows = rows[: lists * width].view(lists, width).expand(held.shape)
    new_rows = rows[lists * width :].view(count, size)
    found = []
    for n in range(count):
        visible, carried = borders.visible[:, :, n], borders.carried[:, :, n]
        mine = _take(parts[:, :, n], asking[:, :, n]).masked_fill(~visible, float("-inf"))
        theirs = _take(held, asking[:, :, n]).masked_fill(~carried, float("-inf"))
        rows_here = new_rows[n].expand(batch, heads, size, size)
        found.append(_largest(theirs, mine, _take(held_rows, asking[:, :, n]), rows_here))
        added = parts[:, :, n].masked_fill(~borders.selected[:, :, n].transpose(-1, -2), float("-inf"))
        before = held.masked_fill(~borders.keep[:, n, None, None, None], float("-inf"))
        held, held_rows = _largest(before, added, held_rows, new_rows[n].expand(batch, heads, lists, size))
    values, index = (torch.cat(each, 2)[:, :, : scores.shape[2]] for each in zip(*found, strict=True))
    none = float("-inf")
    return Largest(index, values > none), Largest(held_rows, held > none)


def _take(lists: Tensor, asked: Int[Tensor, "B H S 1"]) -> Tensor:
    """Of [B, H, C, X] the list that each token asks for: [B, H, S, X]."""
    return lists.gather(2, asked.expand(-1, -1, -1, lists.shape[-1]))


def _largest(held: Tensor, added: Tensor, held_rows: Tensor, added_rows: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and rows of as many as are held."""
    values, place = torch.cat([held, added], -1).topk(held.shape[-1], -1)
    return values, torch.cat([held_rows, added_rows], -1).gather(-1, place)
