"""Chunks of tokens: where episodes, padding and chunks end. A call is cut into N chunks of C tokens at most.

Axes: B batch, H heads, T tokens, N chunks, C tokens of a chunk, X numbers of a row.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F

from rltransformers.functional.call import Tokens


class Borders:
    """Where episodes, padding and chunks end; every mask has its axes at the places of [B, H, N, C, ...].

    Attributes:
        visible: an earlier token of the chunk, or the token itself, belongs to the token's episode.
        carried: the state in front of the chunk belongs to the token's episode.
        selected: the token belongs to the episode of the last valid token of the chunk, and is valid.
        keep: the state in front of the chunk is still the past of its last valid token.
        last: the last valid token of the chunk; 0 where there is none.
        empty: no token of the chunk is valid.
    """

    visible: Bool[Tensor, "B 1 N C C"]
    carried: Bool[Tensor, "B 1 N C 1"]
    selected: Bool[Tensor, "B 1 N C 1"]
    keep: Bool[Tensor, "B N"]
    last: Int[Tensor, "B N"]
    empty: Bool[Tensor, "B N"]

    def __init__(
        self, p: Int[Tensor, "B N C"], live: Bool[Tensor, "B N C"], end: Int[Tensor, "B N 1"], inside: Int[Tensor, " C"]
    ) -> None:
        """``end`` is the last valid token inside each chunk, negative where there is none."""
        age = inside[:, None] - inside
        carried = live | (p > inside)
        last = end.clamp(min=0)
        self.visible = ((age >= 0) & (age <= p[..., None]))[:, None]
        self.carried = carried[:, None, ..., None]
        self.selected = ((inside <= end) & (end - inside <= p.gather(2, last)))[:, None, ..., None]
        self.keep = (carried.gather(2, last) | (end < 0)).squeeze(2)
        self.last, self.empty = last.squeeze(2), (end < 0).squeeze(2)

    @staticmethod
    def of(tokens: Tokens, count: int, size: int) -> "Borders":
        """The borders of ``count`` chunks of ``size`` tokens."""
        device = tokens.p.device
        batch, time = tokens.p.shape
        missing = count * size - time
        p = F.pad(tokens.p, (0, missing)).unflatten(1, (count, size))
        live = F.pad(tokens.live, (0, missing)).unflatten(1, (count, size))
        length = tokens.p.new_full((batch,), time) if tokens.length is None else tokens.length
        end = (length[:, None] - size * torch.arange(count, device=device)).clamp(max=size) - 1
        return Borders(p, live, end[..., None], torch.arange(size, device=device))


@dataclass(frozen=True)
class Decays:
    """What decays leave of sums inside a chunk: products of the factors of exactly the tokens in between.

    Attributes:
        between: of token b at token a; 0 where b is later or of another episode.
        to_end: of a token at the last valid one of its chunk, where the token is ``selected``.
        from_start: of the state in front of the chunk at a token; 0 where that is of another episode.
        over: the same at the last valid token of the chunk, 1 where there is none.
    """

    between: Float[Tensor, "B H N C C"]
    to_end: Float[Tensor, "B H N C 1"]
    from_start: Float[Tensor, "B H N C 1"]
    over: Float[Tensor, "B H N 1 1"]

    @staticmethod
    def of(log_decay: Float[Tensor, "B H N C 1"], borders: Borders) -> "Decays":
        """Sums of logarithms over the tokens in between, not differences of longer sums: nothing has to cancel."""
        size = log_decay.shape[-2]
        later = torch.ones(size, size, dtype=torch.bool, device=log_decay.device).tril(-1)
        sums = log_decay.masked_fill(~later, 0.0).cumsum(-2)  # [a, b]: tokens after b, up to a
        between = sums.masked_fill(~borders.visible, float("-inf")).exp()
        since = log_decay.cumsum(-2)
        from_start = since.exp().masked_fill(~borders.carried, 0.0)
        last = borders.last[:, None, :, None, None].expand(*since.shape[:3], 1, 1)
        to_end = between.gather(-2, last.expand(*last.shape[:-1], size)).transpose(-1, -2)
        over = since.gather(-2, last).exp().masked_fill(borders.empty[:, None, :, None, None], 1.0)
        return Decays(between, to_end, from_start, over)


def chunk_sizes(time: int, chunk: int) -> tuple[int, int]:
    """The number of chunks of ``chunk`` tokens at most, and their size."""
    count = -(-time // chunk)
    return count, -(-time // count)


def in_chunks(rows: Shaped[Tensor, "B H T X"], count: int, size: int) -> Shaped[Tensor, "B H N C X"]:
    """The rows of every chunk, zeros at the end."""
    return F.pad(rows, (0, 0, 0, count * size - rows.shape[2])).unflatten(2, (count, size))
