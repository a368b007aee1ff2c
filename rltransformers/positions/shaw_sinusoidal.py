"""Relative vectors of Shaw et al. 2018 that are sinusoids of the distance (Wei et al. 2019, NEZHA)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rltransformers.core.spec import Feature, Spec
from rltransformers.mixers.interface import Dims
from rltransformers.positions.interface import Acts, Position, sinusoid


@dataclass(frozen=True)
class Options:
    """Options of sinusoidal relative vectors.

    Attributes:
        values: whether vectors are added to values, too.
        project: whether sinusoids as wide as the model are projected to the width of a head, or made in that width.
    """

    values: bool = False
    project: bool = True


class ShawSinusoidal(Position):
    """q . (PE(d) W_K) / sqrt(Dh) on the scores and PE(d) W_V on the values, the same for all heads; nothing is clipped.

    Without projections PE(d) is as wide as a head and has no parameters, as in NEZHA.
    """

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        width, project, values = dims.width, options.project, options.values
        self.acts = Acts.SCORE | Acts.VALUE if values else Acts.SCORE
        self.head_dim, self.value_dim = dims.head_dim, dims.value_dim
        self.keys = nn.Linear(width, self.head_dim, bias=False) if project else None
        self.values = nn.Linear(width, self.value_dim, bias=False) if project and values else None

    def of_distances(self, distance: Tensor, like: Tensor) -> Tensor:
        return vectors(self.keys, distance, self.head_dim, like)

    def value_table(self, length: int, like: Tensor) -> Tensor:
        return vectors(self.values, torch.arange(length, device=like.device), self.value_dim, like)


def vectors(project: nn.Linear | None, distance: Tensor, width: int, like: Tensor) -> Tensor:
    """Sinusoids of distances, as wide as the model and projected, or of the given width."""
    if project is None:
        return sinusoid(distance, width, like)
    return project(sinusoid(distance, project.in_features, like))


SPEC = Spec(
    id="P7", name="shaw_sinusoidal", axis="position",
    paper="Wei et al. 2019, arXiv 1909.00204, equations 3 and 4; Shaw et al. 2018, arXiv 1803.02155",
    summary="Adds sinusoids of the distance to keys and, optionally, values; nothing is clipped.",
    build=ShawSinusoidal, options=Options,
    acts_at="inside attention", needs=(Feature.SCORES, Feature.PRODUCTS),
    formula="l_ts = q_t (k_s + PE(d) W_K) / sqrt(Dh), o_t = sum_s a_ts (v_s + PE(d) W_V)",
)  # fmt: skip
