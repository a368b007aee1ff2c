"""RealFormer: the logits of the layer below are added to this layer's (He et al. 2021)."""

from torch import Tensor

from rltransformers.attention.roles import HandUp, Part, Stage, View
from rltransformers.core.spec import Feature, Refusal, Spec, Traits


class RealFormer(Part):
    """Residual attention: logits_l = own_l + logits_(l-1), both before the mask."""

    stages = Stage.LOGITS
    hands = HandUp.LOGITS

    def logits(self, logits: Tensor, view: View) -> Tensor:
        return logits if view.below is None else logits + view.below


SPEC = Spec(
    id="B4", name="realformer", axis="prior", paper="He et al. 2021, arXiv 2012.11747",
    summary="Adds the logits of the previous layer.",
    build=RealFormer, example={"prior": "realformer", "layers": 3},
    traits=Traits(family="EXPL"),
    offers=(Feature.CARRY,), needs=(Feature.LOGITS,),
    refuses=(
        Refusal(Feature.MIXED_KEYS, "the logits of the previous layer must be about the same keys"),
        Refusal(Feature.HALTING, "a halted token takes no step, so the next one finds no logits of it"),
    ),
    formula="l^n = own l^n + l^(n-1), before the mask",
)  # fmt: skip
