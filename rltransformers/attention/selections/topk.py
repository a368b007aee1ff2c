"""Exact top-k: each query keeps its largest logits, the maximum inner product search of sparse attention."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rltransformers.attention.roles import Part, Stage, View
from rltransformers.core.spec import Feature, Refusal, Size, Spec, Traits
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Options:
    """Keys that a query keeps."""

    k: Size = 16


class TopK(Part):
    """Keeps the ``k`` largest logits of a row; the gradient flows through the kept ones only."""

    stages = Stage.MASKED_LOGITS

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        self.k = options.k

    def masked_logits(self, logits: Tensor, view: View) -> Tensor:
        """All but min(k, S) entries per row at the lowest number; ties are broken by index."""
        largest = logits.detach().topk(min(self.k, logits.shape[-1]), dim=-1).indices
        others = torch.ones_like(logits, dtype=torch.bool).scatter(-1, largest, False)
        return logits.masked_fill(others, torch.finfo(logits.dtype).min)


SPEC = Spec(
    id="C1", name="topk", axis="selection", paper="Gupta et al. 2021, arXiv 2106.06899; survey Lin et al. 2021",
    summary="Each query keeps its k largest logits.",
    build=TopK, options=Options, example={"selection": {"name": "topk", "k": 3}},
    traits=Traits(causality="C*", family="SEL"),
    offers=(Feature.SELECTION,), needs=(Feature.LOGITS,),
    refuses=(Refusal(Feature.TIES, "which of equal scores are the largest depends on the order of the keys"),),
    formula="a_t = softmax over the k largest l_ts",
)  # fmt: skip
