"""Convolutions over the last rows of an episode: weights of taps, their sums, and the rows to keep for later calls.

Axes: B batch, T tokens, R = K - 1 + T rows, D width, H groups of channels, K taps (lag 0 is the token itself). A sum
per tap suits few taps, a product of matrices many.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rltransformers.functional.call import Tokens
from rltransformers.functional.windows import by_key, descending, fold, fold_keys, unfold_tokens

SMALLEST_BLOCK = 32  # tokens of one product of matrices; smaller ones cost more than the zeros that they leave out


def inside(taps: int, tokens: Tokens) -> Bool[Tensor, "B T K"]:
    """Which taps lie in the token's own episode."""
    return torch.arange(taps, device=tokens.p.device) <= tokens.p[..., None]


def tap_weights(logits: Float[Tensor, "*b H K"], tokens: Tokens, renormalize: bool) -> Float[Tensor, "B T H K"]:
    """Softmax over the taps, lag 0 first; a tap that lies before the episode weighs 0.

    With ``renormalize`` the remaining taps share all of the weight; without, the weight of missing taps is lost.
    """
    own = inside(logits.shape[-1], tokens)[:, :, None]
    if renormalize:
        return logits.expand(*tokens.p.shape, -1, -1).masked_fill(~own, float("-inf")).softmax(-1)
    return logits.softmax(-1) * own


def causal_taps(rows: Float[Tensor, "B R D"], weights: Float[Tensor, "B T H K"]) -> Float[Tensor, "B T D"]:
    """``out_t = sum_k weights[t, h, k] * rows[K - 1 + t - k]``; channel group h has D / H neighboring channels."""
    time, heads, taps = weights.shape[1:]
    grouped = rows.unflatten(-1, (heads, -1))
    out = weights[..., 0, None] * grouped[:, taps - 1 :]
    for lag in range(1, taps):  # a view per tap; unfolding instead would copy all rows K times
        start = taps - 1 - lag
        out = out + weights[..., lag, None] * grouped[:, start : start + time]
    return out.flatten(2)


def depthwise(rows: Float[Tensor, "B R D"], kernel: Float[Tensor, "D K"], tokens: Tokens) -> Float[Tensor, "B T D"]:
    """``out_t = sum_k kernel[:, k] * rows[K - 1 + t - k]``, channel by channel; rows before the episode are zeros."""
    time, taps = tokens.p.shape[1], kernel.shape[1]
    out = kernel[:, 0] * rows[:, taps - 1 :]
    for lag in range(1, taps):
        start = taps - 1 - lag
        own = rows[:, start : start + time].masked_fill((tokens.p < lag)[..., None], 0.0)
        out = out + kernel[:, lag] * own
    return out


def many_taps(rows: Float[Tensor, "B R D"], weights: Float[Tensor, "B T K"]) -> Float[Tensor, "B T D"]:
    """``out_t = sum_k weights[t, k] * rows[K - 1 + t - k]``, in blocks of tokens, so that work grows linearly in T."""
    (batch, time, taps), oldest_first = weights.shape, weights.flip(-1)
    block = max(taps // 4, SMALLEST_BLOCK)
    if time <= block:
        return by_key(oldest_first, rows.shape[1]) @ rows
    out = by_key(fold(oldest_first, block), taps - 1 + block) @ fold_keys(rows, taps - 1, block)
    return unfold_tokens(out, time, batch)


def with_past(past: Float[Tensor, "B r D"], rows: Float[Tensor, "B T D"]) -> Float[Tensor, "B R D"]:
    """The rows kept of earlier calls in front of those of this one."""
    return torch.cat([past.to(rows.dtype), rows], 1)


def newest_rows(rows: Float[Tensor, "B R D"], past: Float[Tensor, "B r D"], tokens: Tokens) -> Float[Tensor, "B r D"]:
    """Rows in place of ``past`` after the call: as many valid ones; zeros for those of earlier episodes."""
    count = past.shape[1]
    newest = tokens.newest_rows(rows, count)
    age = descending(count, rows.device)
    return newest.masked_fill((age > tokens.last_position()[:, None])[..., None], 0.0).to(past.dtype)
