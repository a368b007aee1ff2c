"""Learned vectors per clipped distance on keys and, optionally, values (Shaw et al. 2018)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Feature, SizeOrZero, Spec
from rltransformers.mixers.interface import Dims
from rltransformers.positions.interface import Acts, Position


@dataclass(frozen=True)
class Options:
    """Options of relative vectors.

    Attributes:
        max_distance: distance from which on all share one vector.
        values: have vectors on the values as well as on the keys.
    """

    max_distance: SizeOrZero = 16
    values: bool = True


class Shaw(Position):
    """q . aK[min(d, K)] / sqrt(Dh) on the scores and aV[min(d, K)] on the values; tables shared by heads."""

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        if options.values and dims.value_dim != dims.head_dim:
            raise ConfigError(
                f"position 'shaw' adds to values and needs value_dim ({dims.value_dim}) equal to the head width "
                f"({dims.head_dim}); write {{name: shaw, values: false}} or set position to 't5'"
            )
        self.max_distance = options.max_distance
        self.acts = Acts.SCORE | Acts.VALUE if options.values else Acts.SCORE
        shape = self.max_distance + 1, dims.head_dim
        self.keys = nn.Parameter(torch.randn(shape) * 0.02)
        self.values = nn.Parameter(torch.randn(shape) * 0.02) if options.values else None

    def of_distances(self, distance: Tensor, like: Tensor) -> Tensor:
        return self.keys[distance.clamp(max=self.max_distance)]

    def value_table(self, length: int, like: Tensor) -> Tensor:
        assert self.values is not None  # it acts on values
        return self.values[torch.arange(length, device=self.values.device).clamp(max=self.max_distance)]


SPEC = Spec(
    id="P6", name="shaw", axis="position", paper="Shaw et al. 2018, arXiv 1803.02155",
    summary="Adds learned vectors per clipped distance to keys and values.",
    build=Shaw, options=Options, example={"position": {"name": "shaw", "max_distance": 3}},
    acts_at="inside attention", needs=(Feature.SCORES, Feature.PRODUCTS),
    formula="l_ts = q_t (k_s + a_K[min(d, K)]) / sqrt(Dh), o_t = sum_s a_ts (v_s + a_V[min(d, K)])",
)  # fmt: skip
