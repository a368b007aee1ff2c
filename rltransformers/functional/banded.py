"""Softmax attention with what the fused kernels lack: scores by distance that learn, and dropout at a CPU's speed.

Axes: N blocks, H heads, T queries, S keys, L distances, K query width, V value width.
The fused kernels of PyTorch take scores by distance only as a full [T, S] tensor, and not with a gradient. Here they
are added to the logits in place, through a strided view in which the same distance is the same column, and the backward
pass keeps nothing but the weights.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rltransformers.functional.modules import keep_factor


def banded_attention(
    query: Float[Tensor, "N H T K"],
    key: Float[Tensor, "N H S K"],
    value: Float[Tensor, "N H S V"],
    by_distance: Float[Tensor, "..."] | None,
    mask: Float[Tensor, "N h T S"],
    dropout: float = 0.0,
) -> Float[Tensor, "N H T V"]:
    """``softmax(q k^T / sqrt(K) + b + mask) v`` with b_ts = by_distance[.., t, L - 1 - d], d = S - T + t - s.

    Args:
        by_distance: [N, H, T, L] or [H, L], oldest distance L - 1 first; at most the S - T memory keys and the
            token's own, so L <= S - T + 1. Keys further away get nothing. None: b = 0.
        mask: 0 where a query may look and minus infinity elsewhere; for all heads or per head.
        dropout: share of the weights that is set to 0.

    Under autocast everything is computed in its dtype, as the fused kernels do.
    """
    kind = query.device.type
    if torch.is_autocast_enabled(kind):
        low = torch.get_autocast_dtype(kind)
        query, key, value, mask = query.to(low), key.to(low), value.to(low), mask.to(low)
        by_distance = None if by_distance is None else by_distance.to(low)
    n, heads, time, _ = query.shape
    factor = keep_factor(mask.new_empty(n * heads, time, key.shape[2]), dropout) if dropout else None
    out: Tensor = _BandedAttention.apply(query, key, value, by_distance, mask, factor)
    return out


def diagonals(scores: Float[Tensor, "N H T S"], length: int) -> Float[Tensor, "N H T L"]:
    """View of contiguous scores in which column l holds distance L - 1 - l of every query."""
    n, heads, time, keys = scores.shape
    stride = (heads * time * keys, time * keys, keys + 1, 1)
    return scores.as_strided((n, heads, time, length), stride, scores.storage_offset() + keys - time - length + 1)


class _BandedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        by_distance: Tensor | None,
        mask: Tensor,
        factor: Tensor | None,
    ) -> Tensor:
        n, heads, time, _ = query.shape
        scale = query.shape[-1] ** -0.5
        q, k, v = (part.flatten(0, 1) for part in (query, key, value))
        with torch.autocast(query.device.type, enabled=False):
            logits = q.new_empty(n, heads, time, key.shape[2]).copy_(mask)
            logits.flatten(0, 1).baddbmm_(q, k.transpose(1, 2), alpha=scale)
            if by_distance is not None:
                per_token = by_distance[:, None] if by_distance.dim() == 2 else by_distance
                diagonals(logits, by_distance.shape[-1]).add_(per_token)
            weights = logits.softmax(-1).flatten(0, 1)
            out = torch.bmm(weights if factor is None else weights * factor, v)
        ctx.save_for_backward(q, k, v, weights, factor)
        ctx.by_distance = () if by_distance is None else by_distance.shape
        return out.unflatten(0, (n, heads))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights, factor = ctx.saved_tensors
        n, heads = gradient.shape[:2]
        scale = q.shape[-1] ** -0.5
        g = gradient.flatten(0, 1)
        for_weights = torch.bmm(g, v.transpose(1, 2))
        if factor is not None:
            for_weights *= factor
        scores = torch._softmax_backward_data(for_weights, weights, -1, weights.dtype)
        for_query = torch.baddbmm(q, scores, k, beta=0, alpha=scale)
        for_key = torch.baddbmm(k, scores.transpose(1, 2), q, beta=0, alpha=scale)
        for_value = torch.bmm((weights if factor is None else weights * factor).transpose(1, 2), g)
        for_distance = None
        if ctx.needs_input_grad[3]:
            for_distance = diagonals(scores.unflatten(0, (n, heads)), ctx.by_distance[-1])
            for_distance = for_distance.sum((0, 2)) if len(ctx.by_distance) == 2 else for_distance.contiguous()
        return (*(part.unflatten(0, (n, heads)) for part in (for_query, for_key, for_value)), for_distance, None, None)
