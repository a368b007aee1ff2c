"""Sums over the past of an episode, in chunks: what linear attention and running means have in common.

Axes: B batch, H heads, T tokens, N chunks of C tokens, F features of a key, V numbers of a value.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rltransformers.functional.call import Tokens
from rltransformers.functional.chunks import Borders, chunk_sizes, in_chunks

# Forward and backward of 1024 tokens on one CPU core (torch 2.13, widths 64 to 256, 4 and 8 heads) are fastest with 32
# or 64: smaller chunks carry more states, larger ones multiply more of the triangle that the mask throws away.
CHUNK = 64


def causal_sums(
    query: Float[Tensor, "B H T F"],
    key: Float[Tensor, "B H T F"],
    value: Float[Tensor, "B H T V"],
    state: Float[Tensor, "B H F V"],
    tokens: Tokens,
    chunk: int = CHUNK,
    log_decay: Float[Tensor, "B H T"] | None = None,
) -> tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H F V"]]:
    """``query_t @ S_t`` with S_t the sum of ``key_a value_a^T`` over the episode up to t; S at the last valid token.

    ``state`` is S before the call. Sums are taken in float32 at least, whatever autocast says. Work and saved memory
    grow linearly in T: inside a chunk the masked product of all pairs, between chunks the state
    (Katharopoulos et al. 2020, arXiv 2006.16236, equations 10-12, in chunks as in Hua et al. 2022, arXiv 2202.10447).
    With ``log_decay`` the sum before a token is multiplied by ``exp(log_decay)``, at most 1, before the token is added.
    """
    dtype = torch.promote_types(torch.promote_types(value.dtype, state.dtype), torch.float32)
    count, size = chunk_sizes(value.shape[2], chunk)
    with torch.autocast(value.device.type, enabled=False):
        q, k, v = (in_chunks(each.to(dtype), count, size) for each in (query, key, value))
        borders = Borders.of(tokens, count, size)
        pairs = (q @ k.transpose(-1, -2)).masked_fill(~borders.visible, 0.0)
        if log_decay is None:
            inside = pairs @ v
            added = k.masked_fill(~borders.selected, 0.0).transpose(-1, -2) @ v
            starts, state = _carry(state.to(dtype), added, borders.keep)
            before = (q @ starts).masked_fill(~borders.carried, 0.0)
        else:
            left = _Left.of(in_chunks(log_decay.to(dtype)[..., None], count, size).squeeze(-1), borders)
            inside = (pairs * left.of_token) @ v
            added = (k * left.at_end).masked_fill(~borders.selected, 0.0).transpose(-1, -2) @ v
            starts, state = _carry(state.to(dtype), added, borders.keep, left.of_state)
            before = (q * left.of_start) @ starts
    return (inside + before).flatten(2, 3)[:, :, : value.shape[2]], state


def kernel_attention(
    query: Float[Tensor, "B H T F"],
    key: Float[Tensor, "B G T F"],
    value: Float[Tensor, "B G T V"],
    state: dict[str, Tensor],
    tokens: Tokens,
    eps: float = 0.0,
    floor: Float[Tensor, "#B #H #T 1"] | float | None = None,
    log_decay: Float[Tensor, "B G T"] | None = None,
) -> tuple[Float[Tensor, "B H T V"], dict[str, Tensor]]:
    """Values weighted by ``query . key``, divided by the sum of the weights plus ``eps``, which is at least ``floor``.

    Key and value heads are shared by ``H / G`` query heads each. State: "sum" [B, H, F, V] and "norm" [B, H, F], both
    multiplied by ``exp(log_decay)`` before a token is added.
    """
    share = query.shape[1] // key.shape[1]
    if share > 1:
        key, value = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
        log_decay = None if log_decay is None else log_decay.repeat_interleave(share, 1)
    counted = torch.cat([value, torch.ones_like(value[..., :1])], -1)  # the last column sums the weights
    before = torch.cat([state["sum"], state["norm"][..., None]], -1)
    out, after = causal_sums(query, key, counted, before, tokens, log_decay=log_decay)
    total = out[..., -1:] + eps
    mixed = out[..., :-1] / (total if floor is None else total.clamp(min=floor))
    return mixed, {"sum": after[..., :-1], "norm": after[..., -1]}


@dataclass(frozen=True)
class _Left:
    """Rest of earlier sums after the decay of the tokens in between.

    Attributes:
        of_token: of token b at token a.
        at_end: of a token at the last valid one of its chunk.
        of_start: of the state in front of the chunk at a token; 0 where that belongs to another episode.
        of_state: the same at the last valid token of the chunk; 1 where there is none.
    """

    of_token: Float[Tensor, "B H N C C"]
    at_end: Float[Tensor, "B H N C 1"]
    of_start: Float[Tensor, "B H N C 1"]
    of_state: Float[Tensor, "B H N"]

    @staticmethod
    def of(log_decay: Float[Tensor, "B H N C"], borders: Borders) -> "_Left":
        """Sums of logarithms over exactly the tokens in between, so that no token of another episode has to cancel."""
        size = log_decay.shape[-1]
        later = torch.ones(size, size, dtype=torch.bool, device=log_decay.device).tril(-1)
        between = (log_decay[..., None] * later).cumsum(-2)  # [a, b]: tokens after b, up to a
        of_token = between.masked_fill(~borders.visible, float("-inf")).exp()
        since = log_decay.masked_fill(~borders.carried.squeeze(-1), 0.0).cumsum(-1)
        of_start = since.exp()[..., None].masked_fill(~borders.carried, 0.0)
        last = borders.last[:, None, :, None].expand(*log_decay.shape[:3], 1)
        at_end = of_token.gather(-2, last[..., None].expand(*last.shape, size)).squeeze(-2)[..., None]
        of_state = since.gather(-1, last).squeeze(-1).exp().masked_fill(borders.empty[:, None], 1.0)
        return _Left(of_token, at_end, of_start, of_state)


def _carry(
    state: Float[Tensor, "B H F V"],
    added: Float[Tensor, "B H N F V"],
    keep: Bool[Tensor, "B N"],
    left: Float[Tensor, "B H N"] | None = None,
) -> tuple[Float[Tensor, "B H N F V"], Float[Tensor, "B H F V"]]:
    """The state in front of every chunk, and the one after the last."""
    starts = []
    for index, update in enumerate(added.unbind(2)):
        starts.append(state)
        state = state.masked_fill(~keep[:, index, None, None, None], 0.0)
        state = (state if left is None else state * left[:, :, index, None, None]) + update
    return torch.stack(starts, 2), state
