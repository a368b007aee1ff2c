"""EM routing: output capsules are Gaussians fitted to the votes of the heads (Hinton et al. 2018).

Axes: B batch, T tokens, H heads, N capsules, C width of a capsule, D = N C.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.attention.heads.interface import Capsules, Options
from rltransformers.core.spec import Feature, Spec, Traits
from rltransformers.mixers.interface import Dims

EPS = 1e-3
"""Added to variances: heads that vote alike leave a Gaussian of a width."""


def em_routing(
    votes: Float[Tensor, "B T H N C"],
    cost: Float[Tensor, " N"],
    threshold: Float[Tensor, " N"],
    iterations: int,
    sharpness: float = 1.0,
) -> tuple[Float[Tensor, "B T N C"], Float[Tensor, "B T H N"]]:
    """Means times activations, and the shares in which heads belong to capsules (Hinton et al. 2018, procedure 1).

    Args:
        cost, threshold: beta_u and beta_a. All heads are active.
        sharpness: lambda, the inverse temperature of activations.
    """
    shares = torch.full_like(votes[..., 0], 1 / votes.shape[3])
    for _ in range(iterations):
        total = shares.sum(2)  # B T N
        weights = (shares / (total[:, :, None] + EPS))[..., None]
        mean = (weights * votes).sum(2)
        away = (votes - mean[:, :, None]).square()
        variance = (weights * away).sum(2) + EPS
        spent = (variance.log() / 2 + cost[:, None]).sum(-1) * total
        activation = sharpness * (threshold - spent)
        density = -(away / variance[:, :, None] + (2 * math.pi * variance).log()[:, :, None]).sum(-1) / 2
        shares = (F.logsigmoid(activation)[:, :, None] + density).softmax(-1)
    return activation.sigmoid()[..., None] * mean, shares


@dataclass(frozen=True)
class EMOptions(Options):
    """Options of EM routing.

    Attributes:
        iterations: of M and E steps.
        sharpness: inverse temperature of the activations; Hinton et al. raise theirs while they train.
    """

    sharpness: Annotated[float, Ge(0), Le(100)] = 1.0


class EMRouting(Capsules):
    """Capsules by ``em_routing``."""

    name = "capsule_em"

    def __init__(self, dims: Dims, options: EMOptions) -> None:
        super().__init__(dims, options)
        self.sharpness = options.sharpness
        self.cost = nn.Parameter(torch.zeros(self.capsules))
        self.threshold = nn.Parameter(torch.zeros(self.capsules))

    def forward(self, heads: Float[Tensor, "B T X"]) -> Float[Tensor, "B T D"]:
        votes = self.votes(heads)
        cost, threshold = self.cost.to(votes.dtype), self.threshold.to(votes.dtype)
        return em_routing(votes, cost, threshold, self.iterations, self.sharpness)[0].flatten(2).to(heads.dtype)


SPEC = Spec(
    id="H6", name="capsule_em", axis="head_mixing",
    paper="Li et al. 2019, arXiv 1904.03100, section 3.3; Hinton et al. 2018, Matrix capsules with EM routing, ICLR",
    summary="Heads vote for output capsules, Gaussians that expectation and maximization in turn fit to the votes.",
    build=EMRouting, options=EMOptions,
    traits=Traits(
        family="EXPL",
        causal_form="all heads are active; the inverse temperature stays as it is; sums of shares and variances have "
        "0.001 added",
    ),
    needs=(Feature.OUTPUTS,),
    formula="mu, sd of V_hn by R_hn; a_n = sigm(l (b_a - sum_c(ln sd + b_u) sum_h R_hn)); "
    "R_hn ~ a_n N(V_hn); out = [a_n mu_n]",
)  # fmt: skip
