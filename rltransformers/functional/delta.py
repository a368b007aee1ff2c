"""Fast weights that a token corrects rather than adds to: the delta rule, in chunks.

Axes: B batch, H heads, T tokens, N chunks of C tokens, F features of a key, V numbers of a value.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from rltransformers.functional.call import Tokens
from rltransformers.functional.chunks import Borders, chunk_sizes, in_chunks
from rltransformers.functional.recurrences import CHUNK


def delta_sums(
    query: Float[Tensor, "B H T F"],
    key: Float[Tensor, "B H T F"],
    value: Float[Tensor, "B H T V"],
    rate: Float[Tensor, "B H T"],
    state: Float[Tensor, "B H F V"],
    tokens: Tokens,
    chunk: int = CHUNK,
) -> tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H F V"]]:
    """``query_t @ S_t`` with ``S_t = S_(t-1) + rate_t key_t (value_t - key_t @ S_(t-1))^T``; S at the last valid token.

    ``state`` is S before the call; S begins at 0 in every episode. Inside a chunk ``S_t = S_0 + sum_a key_a u_a^T``,
    where the corrections u solve a triangular system: the WY form of products of Householder matrices (Bischof and Van
    Loan 1987; Yang et al. 2024, arXiv 2406.06484, section 3). Work and saved memory grow linearly in T; float32 at
    least, whatever autocast says.
    """
    dtype = torch.promote_types(torch.promote_types(value.dtype, state.dtype), torch.float32)
    count, size = chunk_sizes(value.shape[2], chunk)
    with torch.autocast(value.device.type, enabled=False):
        q, k, v, beta = (in_chunks(x.to(dtype), count, size) for x in (query, key, value, rate[..., None]))
        borders = Borders.of(tokens, count, size)
        later = torch.ones(size, size, dtype=torch.bool, device=k.device).tril(-1)
        system = (beta * (k @ k.transpose(-1, -2))).masked_fill(~(borders.visible & later), 0.0)
        read = k.masked_fill(~borders.carried, 0.0)
        solved = solve_unit_lower(system, beta * torch.cat([v, read], -1))
        values, reads = solved.split([v.shape[-1], k.shape[-1]], -1)  # u = values - reads @ S_0
        selected = k.masked_fill(~borders.selected, 0.0).transpose(-1, -2)
        state, starts, corrections = state.to(dtype), [], []
        for n in range(count):
            starts.append(state)
            corrections.append(values[:, :, n] - reads[:, :, n] @ state)
            kept_state = state.masked_fill(~borders.keep[:, n, None, None, None], 0.0)
            state = kept_state + selected[:, :, n] @ corrections[-1]
        inside = (q @ k.transpose(-1, -2)).masked_fill(~borders.visible, 0.0) @ torch.stack(corrections, 2)
        before = (q @ torch.stack(starts, 2)).masked_fill(~borders.carried, 0.0)
    return (inside + before).flatten(2, 3)[:, :, : value.shape[2]], state


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
