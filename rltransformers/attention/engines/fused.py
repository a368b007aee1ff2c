"""Attention without explicit weights: PyTorch's fused kernel for few queries, ``banded_attention`` for segments.

Axes: B batch, H heads, G key-value heads, T tokens, S keys, K key width, V value width.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from rltransformers.attention.columns import Columns
from rltransformers.functional.banded import banded_attention


def fused(
    query: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B G S K"],
    v: Float[Tensor, "B G S V"],
    scores: Float[Tensor, "..."] | None,
    columns: Columns,
    rate: float,
) -> Float[Tensor, "B H T V"]:
    """The kernel of PyTorch; scores by distance become a bias of every query and key.

    Where heads share keys (G < H, one token only), they stand side by side as the tokens of G heads: every key is read
    once.
    """
    bias = columns.mask if columns.mask.dtype == query.dtype else columns.mask.to(query.dtype)
    if scores is not None:
        bias = columns.spread(scores) + bias
    (batch, heads, time), groups = query.shape[:3], k.shape[1]
    if groups != heads:
        query = query.reshape(batch, groups, heads // groups, -1)
        bias = bias if bias.shape[1] == 1 else bias.reshape(bias.shape[0], groups, heads // groups, -1)
    if time == 1 and torch.compiler.is_compiling():
        # A compiler joins these to two passes over keys and values as they lie; a kernel would be called from outside.
        logits = ((query * query.shape[-1] ** -0.5)[:, :, :, None] * k[:, :, None]).sum(-1) + bias
        out = (logits.softmax(-1)[..., None] * v[:, :, None]).sum(3)
    else:
        out = F.scaled_dot_product_attention(query, k, v, attn_mask=bias, dropout_p=rate)
    return out if groups == heads else out.reshape(batch, heads, 1, -1)


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
