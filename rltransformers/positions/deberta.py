"""Disentangled attention: queries meet vectors of distances, and so do keys (DeBERTa, He et al. 2021)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rltransformers.core.spec import Feature, Size, Spec, Traits
from rltransformers.mixers.interface import Dims
from rltransformers.positions.interface import Acts, Position, head_products


@dataclass(frozen=True)
class Options:
    """Distance K from which on all keys share one vector."""

    max_distance: Size = 512


class Disentangled(Position):
    """[q . k + q . Kr[delta(d)] + k . Qr[delta(-d)]] / sqrt(3 Dh) with Kr = P W_kr and Qr = P W_qr of every layer.

    delta(d) = min(K + d, 2K - 1) and delta(-d) = max(K - d, 0) for d >= 0. The table P serves all layers.
    The authors' code takes the rows of delta(d) in the third term, too (github.com/microsoft/DeBERTa, 4d7fe0b).
    """

    acts = Acts.SCORE | Acts.KEY_SCORE
    common = ("table",)
    scale = 3**-0.5  # three terms of the same size are summed

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        self.heads, self.head_dim, self.max_distance = dims.heads, dims.head_dim, options.max_distance
        self.table = nn.Parameter(torch.randn(2 * self.max_distance, dims.width) * 0.02)
        self.key = nn.Linear(dims.width, self.heads * self.head_dim, bias=False)
        self.query = nn.Linear(dims.width, self.heads * self.head_dim, bias=False)

    def of_distances(self, distance: Tensor, like: Tensor) -> Tensor:
        """Kr[delta(d)] / sqrt(3 Dh) of all heads, [L, H Dh]."""
        row = (self.max_distance + distance).clamp(max=2 * self.max_distance - 1)
        return self.key(self.table[row].to(like.dtype)) * (3 * self.head_dim) ** -0.5

    def scores(self, q: Tensor, table: Tensor) -> Tensor:
        return head_products(q, table)

    def key_vectors(self, distance: Tensor, like: Tensor) -> Tensor:
        """Qr[delta(-d)] / sqrt(3 Dh), [L, H, K]."""
        row = (self.max_distance - distance).clamp(min=0)
        vectors = self.query(self.table[row].to(like.dtype)) * (3 * self.head_dim) ** -0.5
        return vectors.unflatten(-1, (self.heads, self.head_dim))


SPEC = Spec(
    id="P11", name="deberta", axis="position", paper="He et al. 2021, arXiv 2006.03654, equations 2 to 4",
    summary="Adds two scores: of the query with a vector of the distance, and of the key with another one.",
    build=Disentangled, options=Options, example={"position": {"name": "deberta", "max_distance": 4}},
    traits=Traits(causality="C*"),
    acts_at="inside attention", needs=(Feature.SCORES, Feature.PRODUCTS),
    formula="l_ts = (q_t k_s + q_t K_r[delta(d)] + k_s Q_r[delta(-d)]) / sqrt(3 Dh), delta(x) = clip(x + K, 0, 2K - 1)",
)  # fmt: skip
