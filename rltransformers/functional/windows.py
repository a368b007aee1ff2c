"""All index arithmetic of memory windows, episode borders and padding.

Axes: B batch, T tokens of this call, M memory rows, S = M + T key rows, L distances.
Rows are contiguous in time: row s of ``[memory ; tokens]`` lies d = M + t - s tokens before token t. A key belongs to
the episode of token t exactly when d <= p_t (p = position inside the episode), so one integer per token carries episode
borders, empty memory slots and the start of the stream.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F


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
            return values[:, -1]
        index = (self.length - 1).clamp(min=0)
        chosen = values[torch.arange(values.shape[0], device=values.device), index]
        empty = (self.length == 0).view(-1, *[1] * (chosen.dim() - 1))
        return torch.where(empty, before, chosen)


FEW_TOKENS = 4


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


def positions_behind(before: Int[Tensor, " B"], rows: int) -> Int[Tensor, "B M"]:
    """Episode positions of the newest ``rows`` rows up to position ``before``; negative in other episodes."""
    return before[:, None] - descending(rows, before.device)


def padded_behind(valid: Bool[Tensor, "B T"]) -> bool:
    """Whether all valid tokens come first and padding, if any, behind them."""
    return not bool((valid[:, 1:] & ~valid[:, :-1]).any())


def last_rows(rows: Tensor, count: int, tokens: Tokens) -> Tensor:
    """The newest ``count`` valid rows of ``[memory ; tokens]`` [B, S, ...]; zeros stand for rows that do not exist."""
    total, time = rows.shape[1], tokens.p.shape[1]
    if count == 0:
        return rows[:, :0]
    if tokens.length is None:
        newest = rows[:, -count:]
        missing = count - newest.shape[1]
        return (
            torch.cat([newest.new_zeros(newest.shape[0], missing, *newest.shape[2:]), newest], 1) if missing else newest
        )
    end = total - time + tokens.length
    index = end[:, None] - count + torch.arange(count, device=rows.device)
    return take_rows(rows, index)


def take_rows(rows: Tensor, index: Int[Tensor, "B N"]) -> Tensor:
    """Rows [B, N, ...] of ``rows`` [B, S, ...]; a negative index gives zeros."""
    batch = torch.arange(rows.shape[0], device=rows.device)[:, None]
    taken = rows[batch, index.clamp(min=0)]
    absent = (index < 0).view(*index.shape, *[1] * (rows.dim() - 2))
    return taken.masked_fill(absent, 0.0)


def distances(time: int, rows: int, device: torch.device) -> Int[Tensor, "T S"]:
    """d = M + t - s; negative for the future."""
    t = torch.arange(time, device=device)
    s = torch.arange(rows, device=device)
    return rows - time + t[:, None] - s


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
    width = rows + time - 1
    flat = padded.flatten(-2)[..., time - 1 : time - 1 + time * (width - 1)] if time > 1 else padded.flatten(-2)
    if time == 1:
        return flat[..., None, :rows]
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
