"""Differential attention: two heads read the same values, and the second's reading is taken off (Ye et al. 2024).

Axes: B batch, T tokens, H heads, V width of the values of a pair of heads, X = H V, K head width, D model width.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.attention.roles import Combine, HeadOptions
from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Feature, Refusal, Spec, Traits
from rltransformers.functional.modules import normalize_rms
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Options(HeadOptions):
    """The factor of what is taken off, at the start; None: 0.8 - 0.6 exp(-0.3 l) in layer l, counted from 0."""

    initial: Annotated[float, Ge(0), Le(0.95)] | None = None

    def inside(self, dims: Dims) -> Dims:
        """Every head reads the values of two."""
        return replace(dims, value_dim=2 * dims.value_dim)


class Differential(Combine):
    """``W_o [norm(a_1 V - lambda a_2 V) (1 - initial); ...]`` over pairs of neighboring heads."""

    joint_values = 2

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        for name, count, whole in (("heads", dims.heads, dims.width), ("kv_heads", dims.kv_heads, dims.heads)):
            if count % 2:
                even = [each for each in range(2, whole + 1, 2) if whole % each == 0]
                change = f"{name} to {min(even, key=lambda each: abs(each - count))}, or " if even else ""
                raise ConfigError(
                    f"head_mixing 'differential' pairs heads, and {name} ({count}) is odd: set {change}head_mixing to "
                    "'mha'"
                )
        by_layer = 0.8 - 0.6 * math.exp(-0.3 * dims.layer)
        self.initial = by_layer if options.initial is None else options.initial
        self.heads, self.value_dim = dims.heads, dims.value_dim
        self.queries = nn.Parameter(torch.randn(2, dims.head_dim) * 0.1)
        self.keys = nn.Parameter(torch.randn(2, dims.head_dim) * 0.1)
        self.gain = nn.Parameter(torch.ones(dims.value_dim))
        self.project = dims.projection(dims.heads // 2 * dims.value_dim, dims.width)

    def factor(self) -> Float[Tensor, ""]:
        """``exp(q_1 k_1) - exp(q_2 k_2) + initial``."""
        first, second = (self.queries * self.keys).sum(-1).exp().unbind()
        return first - second + self.initial

    def forward(self, heads: Float[Tensor, "B T X"]) -> Float[Tensor, "B T D"]:
        first, second = heads.unflatten(-1, (self.heads // 2, 2, self.value_dim)).unbind(-2)
        difference = first - self.factor() * second
        normal = normalize_rms(difference, self.gain * (1 - self.initial))
        return F.linear(normal.flatten(-2).to(heads.dtype), self.project.weight, self.project.bias)


SPEC = Spec(
    id="N25", name="differential", axis="head_mixing", paper="Ye et al. 2024, arXiv 2410.05258, section 2.1",
    summary="Heads work in pairs: the second one's attention, times a learned factor, is subtracted from the "
            "first one's.",
    build=Differential, options=Options,
    traits=Traits(
        family="EXPL",
        causal_form="`heads` counts the softmaxes, two for every head of the paper; heads and kv_heads are even; each "
        "softmax has dropout of its own",
    ),
    needs=(Feature.OUTPUTS,),
    refuses=(Refusal(Feature.STORE, "what is retrieved are values of single heads, not of pairs"),),
    formula="o_j = (1 - l0) RMSNorm((softmax(q_2j k_2j) - l softmax(q_2j+1 k_2j+1)) [v_2j; v_2j+1]), "
    "l = exp(x_1 y_1) - exp(x_2 y_2) + l0, l0 = 0.8 - 0.6 exp(-0.3 layer)",
)  # fmt: skip
