"""Scores of contents are multiplied by a learned number per head and clipped distance (Huang et al. 2020)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rltransformers.core.spec import Feature, Size, Spec
from rltransformers.mixers.interface import Dims
from rltransformers.positions.interface import Acts, Position


@dataclass(frozen=True)
class Options:
    """Largest distance with a number of its own."""

    max_distance: Size = 64


class Multiplicative(Position):
    """(q . k / sqrt(Dh)) m[h, min(d, K)], m = 1 at first; no decay, since m < 1 raises a score below 0."""

    acts = Acts.FACTOR

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(dims.heads, options.max_distance + 1))

    def factors(self, distance: Tensor, like: Tensor) -> Tensor:
        return self.factor[:, distance.clamp(max=self.factor.shape[1] - 1)].T.to(like.dtype)


SPEC = Spec(
    id="P9", name="multiplicative", axis="position", paper="Huang et al. 2020, arXiv 2009.13658, section 3.2",
    summary="Multiplies content scores by a learned number per head and clipped distance.",
    build=Multiplicative, options=Options, example={"position": {"name": "multiplicative", "max_distance": 3}},
    acts_at="inside attention", needs=(Feature.SCORES, Feature.PRODUCTS),
    formula="l_ts = q_t k_s / sqrt(Dh) m[h, min(d, K)]",
)  # fmt: skip
