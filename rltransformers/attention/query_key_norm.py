"""RMS normalization of queries and keys (arXiv 2302.05442 with LayerNorm). Axes: X numbers of all heads, K of one."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rltransformers.functional.modules import normalize_rms


class QueryKeyNorm(nn.Module):
    """``x / sqrt(mean x^2 + eps) * gain`` of queries and keys, head by head; the heads share a gain."""

    no_decay = ("query_gain", "key_gain")

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.query_gain, self.key_gain = nn.Parameter(torch.ones(head_dim)), nn.Parameter(torch.ones(head_dim))

    def queries(self, rows: Float[Tensor, "*n X"]) -> Float[Tensor, "*n X"]:
        """Normalized queries."""
        return by_head(rows, self.query_gain)

    def keys(self, rows: Float[Tensor, "*n X"]) -> Float[Tensor, "*n X"]:
        """Normalized keys: what a memory keeps."""
        return by_head(rows, self.key_gain)


def by_head(rows: Float[Tensor, "*n X"], gain: Float[Tensor, " K"]) -> Float[Tensor, "*n X"]:
    """Rows whose heads are normalized."""
    return normalize_rms(rows.unflatten(-1, (-1, len(gain))), gain).flatten(-2).to(rows.dtype)
