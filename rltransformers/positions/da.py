"""Scores of contents above 0, multiplied by a learned sigmoid of the distance (DA-Transformer, Wu et al. 2021)."""

import torch
from torch import Tensor, nn

from rltransformers.core.spec import Feature, NoOptions, Spec, Traits
from rltransformers.functional.modules import wide_type
from rltransformers.mixers.interface import Dims
from rltransformers.positions.interface import Acts, Position


class DistanceAware(Position):
    """ReLU(q . k) f(w d) / sqrt(Dh) with f(R) = (1 + exp(v)) / (1 + exp(v - R)), w and v per head.

    f(0) = 1; w > 0 favors far tokens, up to 1 + exp(v) times, w < 0 near ones. Keys whose product is below 0 count as
    if it were 0. Both numbers start at 0, where distances make no difference.
    """

    acts = Acts.FACTOR

    def __init__(self, dims: Dims, options: NoOptions) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.zeros(dims.heads))
        self.bound = nn.Parameter(torch.zeros(dims.heads))

    def factors(self, distance: Tensor, like: Tensor) -> Tensor:
        """In float32 at least until the end; a sigmoid does not overflow where the exponentials would."""
        high = wide_type(like)
        slope, bound = self.slope.to(high), self.bound.to(high)
        far = distance[:, None].to(high) * slope
        return ((1 + bound.exp()) * torch.sigmoid(far - bound)).to(like.dtype)

    def multiplied(self, products: Tensor, factors: Tensor) -> Tensor:
        return products.relu() * factors


SPEC = Spec(
    id="P14", name="da", axis="position", paper="Wu et al. 2021, arXiv 2010.06925, equations 3 to 6",
    summary="Multiplies positive content scores by a learned sigmoid of the distance, one per head.",
    build=DistanceAware,
    traits=Traits(causality="C*"),
    acts_at="inside attention", offers=(Feature.TIES,), needs=(Feature.SCORES, Feature.PRODUCTS),
    formula="l_ts = ReLU(q_t k_s) f(w_h d) / sqrt(Dh), f(R) = (1 + exp(v_h)) / (1 + exp(v_h - R))",
)  # fmt: skip
