"""One learned scalar per head and distance bucket, added to the scores (T5)."""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Int
from torch import Tensor, nn

from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Feature, Spec, Traits
from rltransformers.mixers.interface import Dims
from rltransformers.positions.interface import Acts, Position


def bucket(distance: Int[Tensor, "*n"], buckets: int, max_distance: int) -> Int[Tensor, "*n"]:
    """Causal bucket: exact below buckets/2, logarithmic up to max_distance, the last one beyond (arXiv 1910.10683)."""
    exact = buckets // 2
    d = distance.clamp(min=0)
    scaled = torch.log(d.clamp(min=1).double() / exact) / math.log(max_distance / exact) * (buckets - exact)
    # 1e-9: at d = exact * ratio^n the quotient of logarithms may fall just below the whole number
    far = (exact + (scaled + 1e-9).floor().long()).clamp(max=buckets - 1)
    return torch.where(d < exact, d, far)


@dataclass(frozen=True)
class Options:
    """Options of the buckets.

    Attributes:
        buckets: biases of every head, each for a range of distances.
        max_distance: distance at which the last bucket begins.
    """

    buckets: Annotated[int, Ge(2), Le(1_000_000)] = 32
    max_distance: Annotated[int, Ge(2), Le(1_000_000)] = 128


class T5Bias(Position):
    """Table [H, buckets], shared by all layers."""

    acts = Acts.SCORE
    shared = True

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        buckets, self.max_distance = options.buckets, options.max_distance
        if self.max_distance <= buckets // 2:
            raise ConfigError(
                f"t5 max_distance ({self.max_distance}) must be above half of the buckets ({buckets}), whose distances "
                f"count one by one; set max_distance to at least {buckets // 2 + 1}"
            )
        self.table = nn.Parameter(torch.randn(dims.heads, buckets) * 0.02)

    def of_distances(self, distance: Tensor, like: Tensor) -> Tensor:
        return self.table[:, bucket(distance, self.table.shape[1], self.max_distance)].T

    def scores(self, q: Tensor, table: Tensor) -> Tensor:
        return table.T


SPEC = Spec(
    id="P8", name="t5", axis="position", paper="Raffel et al. 2019, arXiv 1910.10683",
    summary="Adds a learned scalar per head and logarithmic distance bucket to the scores.",
    build=T5Bias, options=Options, example={"position": {"name": "t5", "buckets": 6, "max_distance": 8}},
    traits=Traits(causal_form="products are divided by sqrt(Dh), which T5 leaves to the initial weights"),
    acts_at="inside attention", needs=(Feature.SCORES,),
    formula="l_ts = q_t k_s / sqrt(Dh) + b[h, bucket(d)]",
)  # fmt: skip
