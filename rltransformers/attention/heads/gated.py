"""Gated attention: what heads read passes a gate that looks at the token, in front of the projection (Qiu et al. 2025).

Axes: B batch, T tokens, H heads, V value width, X = H V, D model width.
"""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from rltransformers.attention.roles import Combine
from rltransformers.core.spec import Feature, Spec, Traits
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Options:
    """Whether every channel of a head has a gate ("channel"), or the head one for all of them ("head")."""

    by: Literal["channel", "head"] = "channel"


class GatedHeads(Combine):
    """``W_o (heads * sigmoid(W_g h))``."""

    reads_inputs = True

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        self.shape = dims.heads, dims.value_dim
        self.gate = dims.projection(dims.width, dims.heads * (dims.value_dim if options.by == "channel" else 1))
        self.project = dims.projection(dims.heads * dims.value_dim, dims.width)

    def forward(self, heads: Float[Tensor, "B T X"], h: Float[Tensor, "B T D"] | None = None) -> Float[Tensor, "B T D"]:
        assert h is not None
        gate = F.linear(h, self.gate.weight, self.gate.bias).sigmoid().unflatten(-1, (self.shape[0], -1))
        open_heads = (heads.unflatten(-1, self.shape) * gate).flatten(-2)
        return F.linear(open_heads, self.project.weight, self.project.bias)


SPEC = Spec(
    id="H7", name="gated", axis="head_mixing",
    paper="Qiu et al. 2025, arXiv 2505.06708, section 2.2, G1",
    summary="Multiplies the outputs of heads by a sigmoid gate that reads the token.",
    build=GatedHeads, options=Options,
    traits=Traits(family="EXPL"),
    needs=(Feature.OUTPUTS,),
    formula="y_t = W_O ([o_t1; ...; o_tH] * sigmoid(W_G h_t))",
)  # fmt: skip
