"""Fast weights that a token corrects rather than adds to: the delta rule, in chunks, with and without decay.

Axes: B batch, H heads, T tokens, N chunks of C tokens, F features of a key, V numbers of a value, R corrections.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from rltransformers.functional.call import Tokens
from rltransformers.functional.chunks import Borders, Decays, chunk_sizes, in_chunks
from rltransformers.functional.modules import wide_type
from rltransformers.functional.recurrences import CHUNK, rest_of


def delta_sums(
    query: Float[Tensor, "B H T F"],
    key: Float[Tensor, "B H T F"],
    value: Float[Tensor, "B H T V"],
    rate: Float[Tensor, "B H T"],
    state: Float[Tensor, "B H F V"],
    tokens: Tokens,
    chunk: int = CHUNK,
    log_decay: Float[Tensor, "B H T"] | None = None,
) -> tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H F V"]]:
    """``query_t @ S_t`` with ``S_t = S + rate_t key_t (value_t - key_t @ S)^T``, ``S = exp(log_decay_t) S_(t-1)``.

    Returns S at the last valid token, too; ``state`` is S before the call, and S begins at 0 in every episode.
    ``log_decay``, at most 0, is 0 by default. With keys of length 1 and rates from 0 to 2 S cannot explode. Inside a
    chunk S_t is the rest of S_0 and of ``key_a u_a^T`` for all tokens a up to t; the corrections u solve a triangular
    system: the WY form of products of Householder matrices (Bischof and Van Loan 1987; Yang et al. 2024, arXiv
    2406.06484, section 3; with decay arXiv 2412.06464, section 3.3). Work and saved memory grow linearly in T; float32
    at least, whatever autocast says.
    """
    dtype = wide_type(value, state)
    count, size = chunk_sizes(value.shape[2], chunk)
    with torch.autocast(value.device.type, enabled=False):
        q, k, v, beta = (in_chunks(x.to(dtype), count, size) for x in (query, key, value, rate[..., None]))
        borders = Borders.of(tokens, count, size)
        decays = None
        if log_decay is not None:
            decays = Decays.of(in_chunks(log_decay.to(dtype)[..., None], count, size), borders)
        of_keys, keys = _of_earlier(k, k, borders, decays)
        ends = (k if decays is None else k * decays.to_end).masked_fill(~borders.selected, 0.0)
        over = None if decays is None else decays.over
        of_queries, queries = _of_earlier(q, k, borders, decays)
        out, state = corrected_sums(
            of_queries, of_keys, queries, keys, ends, borders.keep, over, v, beta, state.to(dtype)
        )
    return out.flatten(2, 3)[:, :, : value.shape[2]], state


def delta_products(
    query: Float[Tensor, "B H T F"],
    key: Float[Tensor, "B H T R F"],
    value: Float[Tensor, "B H T R V"],
    rate: Float[Tensor, "B H T R"],
    state: Float[Tensor, "B H F V"],
    tokens: Tokens,
    chunk: int = CHUNK,
    log_decay: Float[Tensor, "B H T"] | None = None,
) -> tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H F V"]]:
    """``delta_sums`` with R corrections per token, one after another, between its decay and its query.

    Source: Siems et al. 2025 (arXiv 2502.10297). A chunk has ``chunk`` corrections at most.
    """
    count = key.shape[3]
    if count == 1:
        return delta_sums(query, key[:, :, :, 0], value[:, :, :, 0], rate[..., 0], state, tokens, chunk, log_decay)
    if log_decay is not None:  # before the first correction
        log_decay = F.pad(log_decay[..., None], (0, count - 1)).flatten(2)
    query = F.pad(query[:, :, :, None], (0, 0, count - 1, 0)).flatten(2, 3)  # after the last one
    key, value, rate = key.flatten(2, 3), value.flatten(2, 3), rate.flatten(2)
    out, state = delta_sums(query, key, value, rate, state, tokens.repeated(count), chunk, log_decay)
    return out[:, :, count - 1 :: count], state


def corrected_sums(
    of_queries: Float[Tensor, "B H N C C"],
    of_keys: Float[Tensor, "B H N C C"],
    queries: Float[Tensor, "B H N C F"],
    keys: Float[Tensor, "B H N C F"],
    ends: Float[Tensor, "B H N C F"],
    keep: Bool[Tensor, "B N"] | None,
    over: Float[Tensor, "B H N #F 1"] | None,
    value: Float[Tensor, "B H N C V"],
    rate: Float[Tensor, "B H N C 1"] | None,
    state: Float[Tensor, "B H F V"],
    extra: Float[Tensor, "B H N F V"] | None = None,
) -> tuple[Float[Tensor, "B H N C V"], Float[Tensor, "B H F V"]]:
    """The delta rule, from what every token sees after all decays.

    Args:
        of_queries, of_keys: products of the token's query and key with earlier keys of its chunk and with its own; 0
            where those are of another episode.
        queries, keys: the token's, by which it reads the state in front of its chunk.
        ends: its key in the state behind the chunk.
        keep, over: what the chunk leaves of the state in front of it, see ``rest_of``.
        value, rate: the token's; None for rates of 1.
        state: in front of the first chunk.
        extra: what a chunk leaves in the state behind it besides its corrections.
    """
    later = of_keys.new_ones(of_keys.shape[-2:], dtype=torch.bool).tril(-1)
    right = torch.cat([value, keys], -1)
    if rate is not None:
        of_keys, right = rate * of_keys, rate * right
    solved = solve_unit_lower(of_keys.masked_fill(~later, 0.0), right)
    values, reads = solved.split([value.shape[-1], keys.shape[-1]], -1)  # corrections = values - reads @ state
    ends, starts, corrections = ends.transpose(-1, -2), [], []
    for n in range(value.shape[2]):
        starts.append(state)
        corrections.append(values[:, :, n] - reads[:, :, n] @ state)
        state = rest_of(state, n, keep, over) + ends[:, :, n] @ corrections[-1]
        if extra is not None:
            state = state + extra[:, :, n]
    return of_queries @ torch.stack(corrections, 2) + queries @ torch.stack(starts, 2), state


def _of_earlier(
    x: Float[Tensor, "B H N C F"], k: Float[Tensor, "B H N C F"], borders: Borders, decays: Decays | None
) -> tuple[Float[Tensor, "B H N C C"], Float[Tensor, "B H N C F"]]:
    """Products of rows with earlier keys of the chunk and their own, and the rows by which the state is read."""
    products, rows = x @ k.transpose(-1, -2), x
    if decays is not None:
        products, rows = products * decays.between, rows * decays.from_start
    return products.masked_fill(~borders.visible, 0.0), rows.masked_fill(~borders.carried, 0.0)


FEW_ROWS = 16
"""Up to here systems are solved by substitution of blocks, as ONNX, which files of policies use, has no solver."""


def solve_unit_lower(lower: Float[Tensor, "*n C C"], right: Float[Tensor, "*n C X"]) -> Float[Tensor, "*n C X"]:
    """``(I + lower)^-1 right`` for ``lower`` with zeros on and above the diagonal."""
    size = lower.shape[-1]
    if size == 1:
        return right
    if size > FEW_ROWS:
        return torch.linalg.solve_triangular(lower, right, upper=False, unitriangular=True)
    half = size // 2
    top = solve_unit_lower(lower[..., :half, :half], right[..., :half, :])
    rest = right[..., half:, :] - lower[..., half:, :half] @ top
    return torch.cat([top, solve_unit_lower(lower[..., half:, half:], rest)], -2)
