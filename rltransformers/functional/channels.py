"""Sums over the past of an episode that decay channel by channel, in chunks.

Axes: B batch, H heads, T tokens, N chunks of C tokens, F channels of a key, V numbers of a value, S blocks of R tokens.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from rltransformers.functional.call import Tokens
from rltransformers.functional.chunks import in_chunks
from rltransformers.functional.delta import corrected_sums
from rltransformers.functional.modules import wide_type
from rltransformers.functional.recurrences import CHUNK, carry


def channel_sums(
    query: Float[Tensor, "B H T F"],
    key: Float[Tensor, "B H T F"],
    value: Float[Tensor, "B H T V"],
    state: Float[Tensor, "B H F V"],
    tokens: Tokens,
    log_decay: Float[Tensor, "B H T F"],
    chunk: int = CHUNK,
) -> tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H F V"]]:
    """``query_t @ S_t`` with ``S_t = diag(exp(log_decay_t)) S_(t-1) + key_t value_t^T``; S at the last valid token.

    ``state`` is S before the call; S begins at 0 in every episode. ``log_decay`` is at most 0. Nothing is divided by
    decays (Yang et al. 2024, arXiv 2312.06635, section 4, do so inside blocks of 16 tokens): see ``decayed_products``.
    Work and saved memory grow linearly in T; float32 at least, whatever autocast says.
    """
    with torch.autocast(value.device.type, enabled=False):
        q, k, v, decay, state = _in_chunks(query, key, value, log_decay, state, tokens, chunk)
        products, queries, ends, over = decayed_products(q, k, decay)
        starts, state = carry(state, ends.transpose(-1, -2) @ v, None, over)
        out = products @ v + queries @ starts
    return out.flatten(2, 3)[:, :, : value.shape[2]], state


def channel_delta_sums(
    query: Float[Tensor, "B H T F"],
    key: Float[Tensor, "B H T F"],
    value: Float[Tensor, "B H T V"],
    rate: Float[Tensor, "B H T"],
    state: Float[Tensor, "B H F V"],
    tokens: Tokens,
    log_decay: Float[Tensor, "B H T F"],
    chunk: int = CHUNK,
) -> tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H F V"]]:
    """``delta_sums`` with a decay per channel: ``S = diag(exp(log_decay_t)) S_(t-1)`` is corrected.

    Source: Kimi Linear (arXiv 2510.26692).
    """
    with torch.autocast(value.device.type, enabled=False):
        q, k, v, decay, state = _in_chunks(query, key, value, log_decay, state, tokens, chunk)
        beta = in_chunks(rate[..., None].to(k.dtype), *k.shape[2:4])
        of_both, both, ends, over = decayed_products(torch.stack([q, k]), k, decay)
        out, state = corrected_sums(of_both[0], of_both[1], both[0], both[1], ends, None, over, v, beta, state)
    return out.flatten(2, 3)[:, :, : value.shape[2]], state


def rank_one_sums(
    query: Float[Tensor, "B H T F"],
    key: Float[Tensor, "B H T F"],
    value: Float[Tensor, "B H T V"],
    read: Float[Tensor, "B H T F"],
    write: Float[Tensor, "B H T F"],
    state: Float[Tensor, "B H F V"],
    tokens: Tokens,
    log_decay: Float[Tensor, "B H T F"],
    chunk: int = CHUNK,
) -> tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H F V"]]:
    """``query_t @ S_t`` with ``S_t = S + key_t value_t^T - write_t (read_t @ S)^T``, where S has decayed.

    As in ``channel_delta_sums``, which this becomes where ``read`` is the key there, ``key`` and ``write`` are ``rate``
    times it: ``S = diag(exp(log_decay_t)) S_(t-1)``. Source: RWKV-7 (arXiv 2503.14456), whose tokens remove what they
    find under one key, and write under another one. What a token finds is a value of every earlier token of its chunk,
    and what that one removed: a triangular system.
    """
    with torch.autocast(value.device.type, enabled=False):
        q, k, v, decay, state = _in_chunks(query, key, value, log_decay, state, tokens, chunk)
        if tokens.length is not None:
            write = write.masked_fill(~tokens.valid()[:, None, :, None], 0.0)
        reads, writes = (in_chunks(x.to(k.dtype), *k.shape[2:4]) for x in (read, write))
        both = torch.stack([q, reads])
        of_keys, _, keys, _ = decayed_products(both, k, decay)
        of_writes, rows, ends, over = decayed_products(both, writes, decay)
        later = k.new_ones(k.shape[-2], k.shape[-2], dtype=torch.bool).tril(-1)
        values = of_keys[1].masked_fill(~later, 0.0) @ v
        new = keys.transpose(-1, -2) @ v
        out, state = corrected_sums(
            of_writes[0], of_writes[1], rows[0], rows[1], ends, None, over, -values, None, state, new
        )
        out = out + of_keys[0] @ v
    return out.flatten(2, 3)[:, :, : value.shape[2]], state


def decayed_products(
    q: Float[Tensor, "*a C F"], k: Float[Tensor, "*b C F"], decay: Float[Tensor, "*b C F"]
) -> tuple[Float[Tensor, "*a C C"], Float[Tensor, "*a C F"], Float[Tensor, "*b C F"], Float[Tensor, "*b F 1"]]:
    """Products of rows with earlier keys and their own, after the decay of the channels in between; C a power of two.

    Blocks of tokens are joined in pairs, from single tokens on. A row of the second block meets a key of the first as
    (row, decayed since its block began) . (key, decayed until its block ends): both decays are products of factors
    from 0 to 1, so that nothing overflows, and a product that underflows is 0 to the last digit anyway.

    Returns:
        The products, 0 for later keys; ``q`` after the decay since the first token, its own included; ``k`` after the
        decay until the last one; the decay of all tokens.
    """
    products = (q * k).sum(-1)[..., None, None]  # [*b S R R] in S = C blocks of R = 1 token
    rows, keys, over = (x[..., None, :] for x in (q * decay, k, decay))  # [*b S R F], the last one [*b S 1 F]
    while products.shape[-3] > 1:
        (rows, newer_rows), (keys, newer_keys), (over, newer_over), (older, newer) = (
            x.unflatten(-3, (-1, 2)).unbind(-3) for x in (rows, keys, over, products)
        )
        across = newer_rows @ keys.transpose(-1, -2)
        products = torch.cat([torch.cat([older, torch.zeros_like(across)], -1), torch.cat([across, newer], -1)], -2)
        rows = torch.cat([rows, newer_rows * over], -2)
        keys = torch.cat([keys * newer_over, newer_keys], -2)
        over = over * newer_over
    return products.squeeze(-3), rows.squeeze(-3), keys.squeeze(-3), over.squeeze(-3).transpose(-1, -2)


def _in_chunks(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: Tensor, tokens: Tokens, chunk: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Chunks of a power of two tokens: the first token of an episode leaves nothing, padding everything as it is."""
    dtype = wide_type(value, state)
    time = value.shape[2]
    size = 1 << (min(time, chunk) - 1).bit_length()
    log_decay = log_decay.to(dtype).masked_fill((tokens.p == 0)[:, None, :, None], float("-inf"))
    if tokens.length is not None:
        padding = ~tokens.valid()[:, None, :, None]
        log_decay, key = log_decay.masked_fill(padding, 0.0), key.masked_fill(padding, 0.0)
    q, k, v, g = (in_chunks(x.to(dtype), -(-time // size), size) for x in (query, key, value, log_decay))
    return q, k, v, g.exp(), state.to(dtype)
