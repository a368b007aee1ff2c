"""Recurrences of single numbers over an episode, ``h_t = a_t * h_(t-1) + u_t``, by a scan: real, complex, of maxima.

Axes: B batch, T tokens, n any further axes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rltransformers.functional.call import Tokens
from rltransformers.functional.modules import wide_type
from rltransformers.functional.windows import fold, match_axes

CHUNK = 8
"""Tokens that are scanned at once; as many chunks are scanned by their ends."""


def scan(
    decay: Float[Tensor, "#B #T *#n"],
    value: Float[Tensor, "B T *n"],
    state: Float[Tensor, " B *n"],
    tokens: Tokens,
    chunk: int = CHUNK,
) -> tuple[Float[Tensor, "B T *n"], Float[Tensor, " B *n"]]:
    """``h_t = decay_t * h_(t-1) + value_t``, number by number, and h at the last valid token.

    ``state`` is h before the call; h begins at 0 in every episode. ``decay`` may have any sign, and may be larger than
    1 as long as products of a call's decays are finite; nothing is divided by it. Its axes of size 1 are broadcast.
    Inside a chunk, of 2 tokens at least, every pass doubles the tokens that a result includes (Hillis and Steele 1986);
    the ends of chunks are scanned in the same way. Work and saved memory grow linearly in T; float32 at least, whatever
    autocast says.
    """
    return _recurrence(decay, value, state, tokens, REAL, chunk)


def complex_scan(
    decay: Float[Tensor, "#B #T 2 *#n"],
    value: Float[Tensor, "B T 2 *n"],
    state: Float[Tensor, "B 2 *n"],
    tokens: Tokens,
    chunk: int = CHUNK,
) -> tuple[Float[Tensor, "B T 2 *n"], Float[Tensor, "B 2 *n"]]:
    """``scan`` of complex numbers: axis 2 holds the real and the imaginary part, as ONNX has no complex numbers."""
    return _recurrence(decay, value, state, tokens, COMPLEX, chunk)


@torch.no_grad()
def running_max(
    log_decay: Float[Tensor, "B T *n"],
    log_value: Float[Tensor, "B T *n"],
    state: Float[Tensor, " B *n"],
    tokens: Tokens,
) -> tuple[Float[Tensor, "B T *n"], Float[Tensor, "B T *n"], Float[Tensor, " B *n"]]:
    """``m_t = max(log_decay_t + m_(t-1), log_value_t)``; returns m_t, m_(t-1) and m at the last valid token.

    ``state`` is m before the call; m begins at 0 in every episode. Without gradients: m is the scale of exponentials,
    which a quotient cancels.
    """
    first = match_axes(tokens.p == 0, log_value)
    value = torch.where(first, torch.maximum(log_decay, log_value), log_value)
    out, after = _recurrence(log_decay, value, state, tokens, MAXIMA, CHUNK)
    before = torch.cat([state.to(out.dtype)[:, None], out], 1)[:, :-1].masked_fill(first, 0.0)
    return out, before, after


def _conjugates(x: Float[Tensor, "B T 2 *n"]) -> Float[Tensor, "B T 2 *n"]:
    return torch.stack([x[:, :, 0], -x[:, :, 1]], 2)


def complex_products(x: Float[Tensor, "B T 2 *#n"], y: Float[Tensor, "#B #T 2 *#n"]) -> Float[Tensor, "B T 2 *n"]:
    """Products of complex numbers, whose parts stand on axis 2."""
    (a, b), (c, d) = x.unbind(2), y.unbind(2)
    return torch.stack([a * c - b * d, a * d + b * c], 2)


@dataclass(frozen=True)
class Algebra:
    """Product and sum of a recurrence, the number that changes no sum and absorbs every factor, and conjugates."""

    times: Callable[[Tensor, Tensor], Tensor]
    plus: Callable[[Tensor, Tensor], Tensor] = torch.add
    zero: float = 0.0
    conjugates: Callable[[Tensor], Tensor] = torch.clone


REAL = Algebra(torch.mul)
COMPLEX = Algebra(complex_products, conjugates=_conjugates)
MAXIMA = Algebra(torch.add, torch.maximum, float("-inf"))


class _Scan(torch.autograd.Function):
    """``_scanned`` that keeps decays and results alone for its gradient, which is a scan in the other direction."""

    @staticmethod
    def forward(ctx: Any, decay: Tensor, value: Tensor, algebra: Algebra, chunk: int) -> Tensor:
        out = _scanned(decay, value, algebra, chunk)
        ctx.save_for_backward(decay, out)
        ctx.algebra, ctx.chunk = algebra, chunk
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (decay, out), algebra = ctx.saved_tensors, ctx.algebra
        later = algebra.conjugates(decay.flip(1).roll(1, 1))  # of the next token; that of the last one is not read
        grad = _scanned(later, grads[0].flip(1), algebra, ctx.chunk).flip(1)
        before = torch.cat([torch.zeros_like(out[:, :1]), out[:, :-1]], 1)
        return algebra.times(grad, algebra.conjugates(before)).sum_to_size(decay.shape), grad, None, None


def _recurrence(
    decay: Tensor, value: Tensor, state: Tensor, tokens: Tokens, algebra: Algebra, chunk: int
) -> tuple[Tensor, Tensor]:
    """Results of every token, and of the last valid one; nothing of the past passes the first token of an episode."""
    dtype = wide_type(value, state)
    value, state = value.to(dtype), state.to(dtype)
    decay = decay.to(dtype).expand(*tokens.p.shape, *decay.shape[2:])
    begins = match_axes(tokens.p == 0, decay)
    decay = decay.masked_fill(begins, algebra.zero)
    before = state[:, None].masked_fill(begins[:, :1], 0.0)  # a state that overflowed does not outlive its episode
    first = algebra.plus(value[:, :1], algebra.times(decay[:, :1], before))
    out = first if value.shape[1] == 1 else torch.cat([first, value[:, 1:]], 1)
    of_gradient = torch.is_grad_enabled() and (decay.requires_grad or out.requires_grad)
    out = (_Scan.apply if of_gradient else _scanned)(decay, out, algebra, max(chunk, 2))
    return out, tokens.last(out, state)


def _scanned(decay: Tensor, value: Tensor, algebra: Algebra, chunk: int) -> Tensor:
    """Results of a recurrence along axis 1 that begins with the first value."""
    batch, time = value.shape[:2]
    if time <= chunk:
        return _doubled(decay, value, algebra)[1]
    decay, value = _doubled(fold(decay, chunk), fold(value, chunk), algebra)
    ends = [x[:, -1].unflatten(0, (batch, -1)) for x in (decay, value)]
    before = _scanned(ends[0], ends[1], algebra, chunk)[:, :-1]
    before = torch.cat([torch.full_like(before[:, :1], algebra.zero), before], 1).flatten(0, 1)
    value = algebra.plus(value, algebra.times(decay, before[:, None]))
    return value.unflatten(0, (batch, -1)).flatten(1, 2)[:, :time]


def _doubled(decay: Tensor, value: Tensor, algebra: Algebra) -> tuple[Tensor, Tensor]:
    """Products of the decays up to every row, and its result; every pass doubles the rows that they include."""
    rows = 1
    while rows < value.shape[1]:
        own, times = decay[:, rows:], algebra.times
        value = torch.cat([value[:, :rows], algebra.plus(value[:, rows:], times(own, value[:, :-rows]))], 1)
        decay = torch.cat([decay[:, :rows], times(own, decay[:, :-rows])], 1)
        rows *= 2
    return decay, value
