"""Gaussian Transformer: a learned quadratic distance penalty per head (Guo et al. 2019)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.attention.roles import Part
from rltransformers.core.spec import Feature, NoOptions, Spec
from rltransformers.mixers.interface import Dims


class Gaussian(Part):
    """-|w d^2 + b| with w >= 0 and b <= 0 per head; the score peaks at d = sqrt(-b / w)."""

    scores_distances = True

    def __init__(self, dims: Dims, options: NoOptions) -> None:
        super().__init__()
        self.width = nn.Parameter(torch.full((dims.heads, 1), -4.0))
        self.offset = nn.Parameter(torch.full((dims.heads, 1), -4.0))

    def of_distances(self, distance: Tensor, like: Tensor) -> Tensor:
        d = distance.to(self.width.dtype)
        return -(F.softplus(self.width) * d**2 - F.softplus(self.offset)).abs().T


SPEC = Spec(
    id="B2", name="gaussian_transformer", axis="prior", paper="Guo et al. 2019, AAAI",
    summary="Subtracts a learned quadratic function of the distance from the scores.",
    build=Gaussian,
    needs=(Feature.SCORES,),
    formula="l_ts - |w d^2 + b|, w >= 0, b <= 0 per head",
)  # fmt: skip
