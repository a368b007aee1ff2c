"""Dynamic routing: heads agree on output capsules instead of being projected (Sabour et al. 2017).

Axes: B batch, T tokens, H heads, N capsules, C width of a capsule, D = N C.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from rltransformers.attention.heads.interface import Capsules, Options
from rltransformers.core.spec import Feature, Spec, Traits

EPS = 1e-8
"""Added to squared lengths: a capsule of length 0 has a direction, and a gradient."""


def squash(s: Float[Tensor, "*n C"]) -> Float[Tensor, "*n C"]:
    """``|s|^2 / (1 + |s|^2) s / |s|``."""
    squared = s.square().sum(-1, keepdim=True)
    return s * (squared / ((1 + squared) * (squared + EPS).sqrt()))


def dynamic_routing(votes: Float[Tensor, "B T H N C"], iterations: int) -> Float[Tensor, "B T N C"]:
    """Heads send their votes where they agree with the other heads' (arXiv 1710.09829, procedure 1)."""
    agreement = torch.zeros_like(votes[..., 0])
    for _ in range(iterations - 1):
        outputs = squash((agreement.softmax(-1)[..., None] * votes).sum(2))
        agreement = agreement + (votes * outputs[:, :, None]).sum(-1)
    return squash((agreement.softmax(-1)[..., None] * votes).sum(2))


class DynamicRouting(Capsules):
    """Capsules by ``dynamic_routing``."""

    name = "capsule_dynamic"

    def forward(self, heads: Float[Tensor, "B T X"]) -> Float[Tensor, "B T D"]:
        return dynamic_routing(self.votes(heads), self.iterations).flatten(2).to(heads.dtype)


SPEC = Spec(
    id="H5", name="capsule_dynamic", axis="head_mixing",
    paper="Li et al. 2019, arXiv 1904.03100, section 3.2; Gu & Feng 2019; Sabour et al. 2017, arXiv 1710.09829",
    summary="Heads vote for output capsules, and votes that agree count more, in place of one projection of all heads.",
    build=DynamicRouting, options=Options,
    traits=Traits(family="EXPL"),
    needs=(Feature.OUTPUTS,),
    formula="b = 0; thrice: Om_n = squash(sum_h softmax_n(b_hn) V_hn), b_hn += Om_n V_hn; "
    "V_hn = o_h W_hn; out = [Om_n]",
)  # fmt: skip
