"""Gated DeltaNet: a matrix per head that forgets a share with every token, then corrects what it holds under a key.

Axes: B batch, T tokens, D width, H heads.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.spec import Feature, Spec, Traits
from rltransformers.functional.delta import delta_products
from rltransformers.functional.stages import GatedOutput, bias_of_steps
from rltransformers.mixers.delta_rule import DeltaOptions, DeltaRule
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Options(DeltaOptions):
    """Options of Gated DeltaNet.

    Attributes:
        decay: whether a head forgets; without, this is DeltaNet (Yang et al. 2024, arXiv 2406.06484).
        householder: corrections per token, each with a key, a value and a rate (Siems et al. 2025, arXiv 2502.10297).
    """

    decay: bool = True
    householder: Annotated[int, Ge(1), Le(3)] = 1


class GatedDeltaNet(DeltaRule):
    """The delta rule with a decay per head, and several corrections per token."""

    correct = staticmethod(delta_products)

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__(dims, options, options.householder)
        self.decay = nn.Linear(dims.width, dims.heads, bias=False) if options.decay else None
        if options.decay:
            self.log_scale = nn.Parameter((16 * (1 - torch.rand(dims.heads))).log())  # below 16 per unit of time
            self.step_bias = nn.Parameter(bias_of_steps(dims.heads))
        self.out = GatedOutput(dims.width, dims.heads, dims.value_dim, "silu", dims.bias, options.norm)

    def log_decay(self, h: Float[Tensor, "B T D"]) -> Float[Tensor, "B H T"] | None:
        """``-exp(log_scale) softplus(w h + step_bias)``."""
        if self.decay is None:
            return None
        return (-self.log_scale.exp() * F.softplus(self.decay(h) + self.step_bias)).transpose(1, 2)


SPEC = Spec(
    id="N4", name="gated_deltanet", axis="mixer",
    paper="Yang, Kautz and Hatamizadeh 2025, arXiv 2412.06464; Grazzi et al. 2024, arXiv 2411.12537; "
    "Siems et al. 2025, arXiv 2502.10297",
    summary="gated delta rule: every token decays a matrix, then corrects the value that it stores under its key",
    build=GatedDeltaNet, options=Options,
    traits=Traits(
        family="KERN", horizon="episode", state="H Dk Dv + (conv - 1) (H Dk + R G (Dk + Dv))",
        causal_form="heads are as wide as those of attention, in the authors' code values twice as wide; heads "
                    "that share keys have decays and corrections of their own",
    ),
    offers=(Feature.KEYS,),
    formula="S' = a_t S_(t-1), S_t = S' + beta_t k_t (v_t - S'^T k_t)^T, o_t = S_t^T q_t / sqrt(Dk), "
    "beta_t = sigmoid(w_b x_t), a_t = exp(-exp(A) softplus(w_a x_t + b)); q, k, v by a short convolution with SiLU, "
    "q and k of length 1; out = W_o (RMSNorm(o_t) silu(W_g x_t))",
)  # fmt: skip
