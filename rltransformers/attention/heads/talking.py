"""Talking heads: linear maps over the head axis before and after the softmax (Shazeer et al. 2020)."""

import torch
from torch import Tensor, nn

from rltransformers.attention.roles import Part, Stage, View
from rltransformers.core.spec import Feature, NoOptions, Refusal, Spec, Traits
from rltransformers.mixers.interface import Dims


class TalkingHeads(Part):
    """J_k = sum_h logits_h P_l[h, k]; U_v = sum_k weights_k P_w[k, v]; both start as the identity."""

    stages = Stage.LOGITS | Stage.MIXED_WEIGHTS

    def __init__(self, dims: Dims, options: NoOptions) -> None:
        super().__init__()
        self.before = nn.Parameter(torch.eye(dims.heads))
        self.after = nn.Parameter(torch.eye(dims.heads))

    def logits(self, logits: Tensor, view: View) -> Tensor:
        return torch.einsum("bhts,hk->bkts", logits, self.before)

    def mixed_weights(self, weights: Tensor, view: View) -> Tensor:
        return torch.einsum("bkts,kv->bvts", weights, self.after)


SPEC = Spec(
    id="H3", name="talking", axis="head_mixing", paper="Shazeer et al. 2020, arXiv 2003.02436",
    summary="Mixes logits and weights across heads.",
    build=TalkingHeads,
    traits=Traits(
        family="EXPL",
        causal_form="position scores are mixed too; the authors' code adds them after the mixing and allows "
                    "another number of heads in between",
    ),
    needs=(Feature.LOGITS,),
    refuses=(
        Refusal(Feature.HEAD_PATTERNS, "heads that are mixed need one mask for all of them"),
        Refusal(Feature.SELECTION, "heads that are mixed need one mask for all of them, not a selection each"),
    ),
    formula="J_k = sum_h l_h P_l[h, k], w = softmax(J), U_v = sum_k w_k P_w[k, v]",
)  # fmt: skip
