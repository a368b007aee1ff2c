"""Attention without explicit weights: PyTorch's fused kernel for few queries, ``banded_attention`` for segments.

Axes: B batch, H heads, T tokens, S keys, K key width, V value width.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from rltransformers.attention.columns import Columns
from rltransformers.functional.banded import banded_attention


def fused(
    query: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B H S K"],
    v: Float[Tensor, "B H S V"],
    scores: Float[Tensor, "..."] | None,
    columns: Columns,
    rate: float,
) -> Float[Tensor, "B H T V"]:
    """The kernel of PyTorch; scores by distance become a bias of every query and key."""
    bias = columns.mask if columns.mask.dtype == query.dtype else columns.mask.to(query.dtype)
    if scores is not None:
        bias = columns.spread(scores) + bias
    if query.shape[2] == 1 and torch.compiler.is_compiling():
        # A compiler joins these to two passes over keys and values as they lie; a kernel would be called from outside.
        logits = (query * query.shape[-1] ** -0.5 * k).sum(-1)[:, :, None] + bias
        return (logits.softmax(-1).transpose(-1, -2) * v).sum(2, keepdim=True)
    return F.scaled_dot_product_attention(query, k, v, attn_mask=bias, dropout_p=rate)


def banded(
    query: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B H S K"],
    v: Float[Tensor, "B H S V"],
    scores: Float[Tensor, "..."] | None,
    columns: Columns,
    rate: float,
) -> Float[Tensor, "B H T V"]:
    """Scores by distance are added through a view, learn, and are kept for no backward pass."""
    return banded_attention(query, k, v, scores, columns.mask.to(query.dtype), rate)
