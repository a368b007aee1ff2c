"""Sums over the past of an episode, in chunks: what linear attention and running means have in common.

Axes: B batch, H heads, T tokens, N chunks of C tokens, F features of a key, V numbers of a value.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rltransformers.functional.call import Tokens
from rltransformers.functional.chunks import Borders, Decays, chunk_sizes, in_chunks
from rltransformers.functional.modules import wide, wide_type
from rltransformers.functional.scan import running_max

# Forward and backward of 20 to 1024 tokens on one CPU core (torch 2.13, 4 heads of 16 to 64) are fastest with 32 or as
# fast as with 64: smaller ones carry more states, larger ones multiply more of the triangle that the mask throws away.
CHUNK = 32


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
    dtype = wide_type(value, state)
    count, size = chunk_sizes(value.shape[2], chunk)
    with torch.autocast(value.device.type, enabled=False):
        q, k, v = (in_chunks(x.to(dtype), count, size) for x in (query, key, value))
        borders = Borders.of(tokens, count, size)
        pairs = (q @ k.transpose(-1, -2)).masked_fill(~borders.visible, 0.0)
        if log_decay is None:
            inside = pairs @ v
            added = k.masked_fill(~borders.selected, 0.0).transpose(-1, -2) @ v
            starts, state = carry(state.to(dtype), added, borders.keep)
            before = (q @ starts).masked_fill(~borders.carried, 0.0)
        else:
            decays = Decays.of(in_chunks(log_decay.to(dtype)[..., None], count, size), borders)
            inside = (pairs * decays.between) @ v
            added = (k * decays.to_end).masked_fill(~borders.selected, 0.0).transpose(-1, -2) @ v
            starts, state = carry(state.to(dtype), added, borders.keep, decays.over)
            before = (q * decays.from_start) @ starts
    return (inside + before).flatten(2, 3)[:, :, : value.shape[2]], state


def weighted_sums(
    query: Float[Tensor, "B H T F"],
    key: Float[Tensor, "B H T F"],
    value: Float[Tensor, "B H T V"],
    state: dict[str, Tensor],
    tokens: Tokens,
    chunk: int = CHUNK,
    log_decay: Float[Tensor, "B H T"] | None = None,
) -> tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H T 1"], dict[str, Tensor]]:
    """``causal_sums`` of values, and the sum of their weights; state: "sum" [B, H, F, V] and "norm" [B, H, F]."""
    counted = torch.cat([value, torch.ones_like(value[..., :1])], -1)
    before = torch.cat([state["sum"], state["norm"][..., None]], -1)
    out, after = causal_sums(query, key, counted, before, tokens, chunk, log_decay)
    return out[..., :-1], out[..., -1:], {"sum": after[..., :-1], "norm": after[..., -1]}


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
    values, total, after = weighted_sums(query, key, value, state, tokens, log_decay=log_decay)
    total = total + eps
    return values / (total if floor is None else total.clamp(min=floor)), after


def exponential_attention(
    query: Float[Tensor, "B H T F"],
    key: Float[Tensor, "B H T F"],
    value: Float[Tensor, "B H T V"],
    log_input: Float[Tensor, "B H T"],
    log_decay: Float[Tensor, "B H T"],
    state: dict[str, Tensor],
    tokens: Tokens,
    chunk: int = CHUNK,
) -> tuple[Float[Tensor, "B H T V"], dict[str, Tensor]]:
    """``query_t @ C_t / max(|query_t . n_t|, 1)`` with ``C_t = exp(log_decay_t) C_(t-1) + exp(log_input_t) k_t v_t^T``.

    n is the same sum of keys alone: the matrix memory of the xLSTM (Beck et al. 2024, arXiv 2405.04517, equations
    19-27). State: "sum" [B, H, F, V], "norm" [B, H, F] and "max" [B, H], all 0 at first; C and n are kept divided by
    exp(max), ``max_t = max(log_decay_t + max_(t-1), log_input_t)``, so that inputs of any size fit.
    """
    rows = [wide(x).transpose(1, 2) for x in (log_decay, log_input)]
    scale, before, last = running_max(rows[0], rows[1], state["max"], tokens)
    decay = (rows[0] + before - scale).transpose(1, 2)
    weight = (rows[1] - scale).exp().transpose(1, 2)[..., None]
    values, total, after = weighted_sums(query, key * weight, value, state, tokens, chunk, decay)
    floor = (-scale).exp().transpose(1, 2)[..., None]
    return values / torch.maximum(total.abs(), floor), after | {"max": last}


def carry(
    state: Float[Tensor, "B H F V"],
    added: Float[Tensor, "B H N F V"],
    keep: Bool[Tensor, "B N"] | None,
    over: Float[Tensor, "B H N #F 1"] | None = None,
) -> tuple[Float[Tensor, "B H N F V"], Float[Tensor, "B H F V"]]:
    """The state in front of every chunk, and the one after the last, see ``rest_of``."""
    starts = []
    for n, update in enumerate(added.unbind(2)):
        starts.append(state)
        state = rest_of(state, n, keep, over) + update
    return torch.stack(starts, 2), state


def rest_of(
    state: Float[Tensor, "B H F V"],
    chunk: int,
    keep: Bool[Tensor, "B N"] | None,
    over: Float[Tensor, "B H N #F 1"] | None,
) -> Float[Tensor, "B H F V"]:
    """What a chunk leaves of the state in front of it: nothing where it may not ``keep`` it, ``over`` times as much."""
    if keep is not None:
        state = state.masked_fill(~keep[:, chunk, None, None, None], 0.0)
    return state if over is None else state * over[:, :, chunk]
