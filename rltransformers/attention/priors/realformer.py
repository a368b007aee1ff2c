"""RealFormer: the logits of the layer below are added to this layer's (He et al. 2021)."""

from rltransformers.attention.interface import Dims
from rltransformers.attention.priors.interface import Prior
from rltransformers.core.spec import Spec, Traits


class RealFormer(Prior):
    """Residual attention: logits_l = own_l + logits_(l-1), both before the mask."""

    residual = True


def build(dims: Dims) -> Prior:
    """B4."""
    return RealFormer()


SPEC = Spec(
    id="B4",
    name="realformer",
    axis="prior",
    paper="He et al. 2021, arXiv 2012.11747",
    summary="Adds the previous layer's unmasked logits.",
    build=build,
    example={"prior": "realformer", "layers": 3},
    traits=Traits(family="EXPL"),
)
