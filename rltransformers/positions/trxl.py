"""Relative scores of Transformer-XL: content and position biases, sinusoids of the distance (Dai et al. 2019)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.spec import Feature, NoOptions, Spec
from rltransformers.mixers.interface import Dims
from rltransformers.positions.interface import Acts, Position, head_products, sinusoid


class TransformerXLRelative(Position):
    """[(q + u) . k + (q + v) . W_R PE(d)] / sqrt(Dh); u, v and W_R belong to the layer, as with ``untie_r``."""

    acts = Acts.QUERY | Acts.SCORE

    def __init__(self, dims: Dims, options: NoOptions) -> None:
        super().__init__()
        self.content_bias = nn.Parameter(torch.zeros(dims.heads, 1, dims.head_dim))
        self.position_bias = nn.Parameter(torch.zeros(dims.heads, 1, dims.head_dim))
        self.project = nn.Linear(dims.width, dims.heads * dims.head_dim, bias=False)

    def content_query(self, q: Tensor) -> Tensor:
        """q + u."""
        return q + self.content_bias

    def of_distances(self, distance: Tensor, like: Tensor) -> Tensor:
        """W_R PE(d) / sqrt(Dh) of all heads, [L, H Dh]."""
        encoded = sinusoid(distance, self.project.in_features, like)
        return F.linear(encoded * self.content_bias.shape[-1] ** -0.5, self.project.weight)

    def scores(self, q: Tensor, table: Tensor) -> Tensor:
        """[B, H, T, L]."""
        return head_products(q + self.position_bias, table)


SPEC = Spec(
    id="P10", name="trxl", axis="position", paper="Dai et al. 2019, arXiv 1901.02860, section 3.3",
    summary="Scores content and a projected sinusoid of the distance with separate learned biases.",
    build=TransformerXLRelative, acts_at="inside attention", needs=(Feature.SCORES, Feature.PRODUCTS),
    formula="l_ts = ((q_t + u) k_s + (q_t + v) W_R PE(d)) / sqrt(Dh)",
)  # fmt: skip
