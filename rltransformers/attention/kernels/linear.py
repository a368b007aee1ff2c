"""Linear attention: a sum of key-value products takes the place of the memory.

Axes: B batch, T tokens, D width, H heads.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.attention.interface import Dims
from rltransformers.core.record import Record
from rltransformers.core.spec import Spec, Traits
from rltransformers.functional.recurrences import kernel_attention
from rltransformers.functional.windows import Tokens

EPS = 1e-6


def positive(x: Tensor) -> Tensor:
    """``elu(x) + 1``, the feature map of arXiv 2006.16236, equation 7; float32 at least."""
    return F.elu(x.to(torch.promote_types(x.dtype, torch.float32))) + 1


class LinearAttention(nn.Module):
    """``o_t = phi(q_t) S_t / (phi(q_t) z_t + 1e-6)``, S and z sums over the whole episode (equations 8-12)."""

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.dims = dims
        self.widths = [dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim, dims.kv_heads * dims.value_dim]
        self.project = nn.Linear(dims.width, sum(self.widths), bias=False)
        self.out = nn.Linear(dims.heads * dims.value_dim, dims.width, bias=False)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Key-value products and keys, summed over the episode."""
        heads, head_dim = self.dims.heads, self.dims.head_dim
        return {"sum": (heads, head_dim, self.dims.value_dim), "norm": (heads, head_dim)}

    def forward(
        self,
        h: Float[Tensor, "B T D"],
        state: dict[str, Tensor],
        tokens: Tokens,
        *,
        record: Record | None = None,
        name: str = "",
    ) -> tuple[Float[Tensor, "B T D"], dict[str, Tensor]]:
        """Mixed tokens and the new sums."""
        counts = (self.dims.heads, self.dims.kv_heads, self.dims.kv_heads)
        parts = self.project(h).split(self.widths, -1)
        q, k, v = (part.unflatten(-1, (n, -1)).transpose(1, 2) for part, n in zip(parts, counts, strict=True))
        mixed, state = kernel_attention(positive(q), positive(k), v, state, tokens, EPS)
        return self.out(mixed.transpose(1, 2).flatten(2).to(h.dtype)), state


def build(dims: Dims) -> LinearAttention:
    """Linear attention for one layer."""
    return LinearAttention(dims)


SPEC = Spec(
    id="S3",
    name="linear",
    axis="mixer",
    paper="Katharopoulos et al. 2020, arXiv 2006.16236",
    summary="kernel elu(x) + 1 instead of softmax: a fixed-size sum remembers the whole episode",
    build=build,
    example={"mixer": "linear"},
    traits=Traits(causality="C", family="KERN", horizon="episode", state="H Dh (Dv + 1)", time="T"),
)
