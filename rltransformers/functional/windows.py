"""All index arithmetic of memory windows, episode borders and padding.

Axes: B batch, T tokens of this call, M memory rows, S = M + T key rows, L distances, X width of a row.
Rows are contiguous in time: row s of ``[memory ; tokens]`` lies d = M + t - s tokens before token t. A key belongs to
the episode of token t exactly when d <= p_t (p = position inside the episode), so one integer per token carries episode
borders, empty memory slots and the start of the stream.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

FEW_TOKENS = 4


def positions_behind(before: Int[Tensor, " B"], rows: int) -> Int[Tensor, "B M"]:
    """Episode positions of the newest ``rows`` rows up to position ``before``; negative in other episodes."""
    return before[:, None] - descending(rows, before.device)


def padded_behind(valid: Bool[Tensor, "B T"]) -> bool:
    """Whether all valid tokens come first and padding, if any, behind them."""
    return not bool((valid[:, 1:] & ~valid[:, :-1]).any())


def match_axes(mask: Tensor, leaf: Tensor) -> Tensor:
    """``mask`` with as many axes as ``leaf``: ones behind its own."""
    return mask.view(*mask.shape, *[1] * (leaf.dim() - mask.dim()))


def take_rows(rows: Tensor, index: Int[Tensor, " B *n"]) -> Tensor:
    """Rows [B, *n, ...] of ``rows`` [B, S, ...]; a negative index gives zeros, one behind the rows the last of them."""
    batch = match_axes(torch.arange(rows.shape[0], device=rows.device), index)
    taken = rows[batch, index.clamp(0, rows.shape[1] - 1)]
    return taken.masked_fill(match_axes(index < 0, taken), 0.0)


def rows_up_to(rows: Tensor, last: Int[Tensor, " B *n"], count: int) -> Tensor:
    """The ``count`` rows that end at every index ``last``: [B, *n, count, ...]; those before the first are zeros."""
    return take_rows(rows, last[..., None] - descending(count, rows.device))


def fetch(rows: Float[Tensor, "B H N X"], index: Int[Tensor, "B h T C"]) -> Float[Tensor, "B H T C X"]:
    """Rows by head and token, C of them."""
    flat = index.expand(-1, rows.shape[1], -1, -1).flatten(2)
    return rows.gather(2, flat[..., None].expand(-1, -1, -1, rows.shape[-1])).unflatten(2, index.shape[2:])


def descending(length: int, device: torch.device) -> Int[Tensor, " L"]:
    """The distances L - 1 .. 0."""
    return torch.arange(length - 1, -1, -1, device=device)


def by_key(per_distance: Float[Tensor, "*n T L"], rows: int) -> Float[Tensor, "*n T S"]:
    """out[t, s] = per_distance[t, L - 1 - (M + t - s)], 0 where that distance is negative or not listed.

    Distances are listed from the oldest, L - 1, to the token itself, 0. The relative shift of Transformer-XL (arXiv
    1901.02860, appendix B): pad, then read the same numbers with rows one shorter; no gather.
    """
    time, length = per_distance.shape[-2:]
    if time == 1 and length == rows:
        return per_distance
    if length > rows:
        per_distance, length = per_distance[..., -rows:], rows
    padded = F.pad(per_distance, (rows - length, time - 1))
    if time == 1:
        return padded
    width = rows + time - 1
    flat = padded.flatten(-2)[..., time - 1 : time - 1 + time * (width - 1)]
    return flat.unflatten(-1, (time, width - 1))[..., :rows]


def fold(tokens: Tensor, block: int) -> Tensor:
    """[B, T, ...] to [B * n, block, ...]; T is padded with zeros at its end to n * block."""
    missing = -tokens.shape[1] % block
    if missing:
        tokens = torch.cat([tokens, tokens.new_zeros(tokens.shape[0], missing, *tokens.shape[2:])], 1)
    return tokens.unflatten(1, (-1, block)).flatten(0, 1)


def fold_keys(keys: Float[Tensor, "B S E"], memory: int, block: int) -> Float[Tensor, "Bn R E"]:
    """Give every block of ``fold`` its own ``memory`` rows in front: [B * n, memory + block, E]."""
    older = -(-memory // block)  # blocks that hold the memory of one block, the oldest in part
    spare = older * block - memory
    missing = -(keys.shape[1] - memory) % block
    if spare or missing:
        keys = F.pad(keys, (0, 0, spare, missing))
    blocks = keys.unflatten(1, (-1, block))
    count = blocks.shape[1] - older
    parts = [blocks[:, first : first + count] for first in range(older + 1)]
    if spare:
        parts[0] = parts[0][:, :, spare:]
    return torch.cat(parts, 2).flatten(0, 1)


def unfold_tokens(folded: Tensor, time: int, batch: int) -> Tensor:
    """Inverse of ``fold``: [B * n, block, ...] to [B, T, ...]."""
    return folded.unflatten(0, (batch, -1)).flatten(1, 2)[:, :time]


def compressed_blocks(p: Int[Tensor, "*n"], recent: int, rate: int) -> Int[Tensor, "*n"]:
    """F(p) = max(0, p - recent) // rate, the blocks already compressed for the token at p."""
    return (p - recent).clamp(min=0) // rate
