"""Cross-attention: tokens of the stream read the elements of their own observation.

Axes: B batch, S tokens with elements, N elements, H heads, G key-value heads, K head width, V value width, D model
width.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.functional.call import EVERY
from rltransformers.mixers.interface import Dims


class CrossAttention(nn.Module):
    """Scaled dot products of tokens with elements, normalized over the elements that exist.

    Source: Vaswani et al. 2017 (arXiv 1706.03762, section 3.2.3).
    """

    def __init__(self, dims: Dims, dropout: float) -> None:
        super().__init__()
        self.dims, self.dropout = dims, dropout
        self.query = dims.projection(dims.width, dims.heads * dims.head_dim)
        self.keys = dims.projection(dims.width, dims.kv_heads * (dims.head_dim + dims.value_dim))
        self.output = dims.projection(dims.heads * dims.value_dim, dims.width)

    def forward(
        self, h: Float[Tensor, "B S D"], rows: Float[Tensor, "B S N D"], exists: Bool[Tensor, "B S N"]
    ) -> Float[Tensor, "B S D"]:
        """Values that every token reads; where no element exists the result is finite and means nothing."""
        dims, (batch, time, count) = self.dims, exists.shape
        query = self.query(h).view(batch * time, dims.heads, 1, dims.head_dim)
        keys = self.keys(rows).view(batch * time, count, dims.kv_heads, dims.head_dim + dims.value_dim)
        keys = keys.transpose(1, 2)
        keys = keys.repeat_interleave(dims.heads // dims.kv_heads, 1) if dims.kv_heads < dims.heads else keys
        k, v = keys.split_with_sizes([dims.head_dim, dims.value_dim], -1)
        seen = (exists | ~exists.any(-1, keepdim=True)).view(batch * time, 1, 1, count)
        rate = self.dropout if self.training else 0.0
        read = F.scaled_dot_product_attention(query, k, v, seen, dropout_p=rate)
        return self.output(read.reshape(batch, time, -1))


def looked_up(
    x: Float[Tensor, "B T D"], joined: Float[Tensor, "B S D"], exists: Bool[Tensor, "B S N"], at: slice
) -> Tensor:
    """The stream with the tokens ``at`` as they are ``joined`` with what they read, where an element exists."""
    if at == EVERY:
        return torch.where(exists.any(-1, keepdim=True), joined, x)
    changed = torch.where(exists.any(-1, keepdim=True), joined, x[:, at])
    return torch.slice_scatter(x, changed, 1, at.start, at.stop, at.step or 1)
