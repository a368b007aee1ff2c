"""Fast weights: a matrix per head that every token programs by a rank-one update and reads.

Axes: B batch, T tokens, H heads, G key-value heads, Dh width of a head, m features.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Feature, Spec, Traits
from rltransformers.functional.call import Call
from rltransformers.functional.delta import delta_sums
from rltransformers.functional.modules import wide
from rltransformers.functional.recurrences import causal_sums
from rltransformers.mixers.interface import Dims, LayerState
from rltransformers.mixers.kernel import HeadsMixer

SMALLEST_SUM = 1e-6
"""Features of products of rectified numbers may all be 0; they are divided by no less."""


def fast_weight_features(x: Float[Tensor, "*n Dh"], nu: int) -> Float[Tensor, "*n m"]:
    """``elu(x) + 1`` or, for nu > 0, 2 Dh nu products of rectified numbers; they sum up to 1. Float32 at least.

    The products are those of r = relu([x, -x]) with r rolled by 1 to nu places (arXiv 2102.11174, section 5.3).
    """
    x = wide(x)
    if not nu:
        features = F.elu(x) + 1
    else:
        rectified = torch.cat([x, -x], -1).relu()
        features = torch.cat([rectified * rectified.roll(shift, -1) for shift in range(1, nu + 1)], -1)
    return features / features.sum(-1, keepdim=True).clamp(min=SMALLEST_SUM)


@dataclass(frozen=True)
class Options:
    """Options of fast weights.

    Attributes:
        rule: "delta" replaces what was stored under a key by a learned share, "sum" adds to it.
        nu: rolls of the deterministic projection, which has 2 Dh nu features; 0 takes elu(x) + 1.
    """

    rule: Literal["delta", "sum"] = "delta"
    nu: Annotated[int, Ge(0), Le(1000)] = 0


class FastWeights(HeadsMixer):
    """``W_t = W_(t-1) + beta_t (v_t - W_(t-1) phi(k_t)) phi(k_t)^T``, or ``+ v_t phi(k_t)^T``; ``o_t = W_t phi(q_t)``.

    Source: Schlag et al. 2021 (arXiv 2102.11174), section 4.2, without attention normalization. The authors'
    code multiplies what is read by 1/sqrt(Dh), which the output projection can do.
    """

    rate: nn.Linear | None

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__(dims)
        self.nu, rectified = options.nu, 2 * dims.head_dim
        if self.nu >= rectified:
            raise ConfigError(
                f"fast_weight rolls the {rectified} rectified numbers of a head by up to nu ({self.nu}) places; "
                f"set nu to at most {rectified - 1}"
            )
        self.features = rectified * self.nu if self.nu else dims.head_dim
        self.rate = dims.projection(dims.width, dims.kv_heads) if options.rule == "delta" else None

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """The fast weights, transposed."""
        return {"weights": (self.dims.heads, self.features, self.dims.value_dim)}

    def read(
        self, h: Tensor, q: Tensor, k: Tensor, v: Tensor, state: LayerState, call: Call
    ) -> tuple[Tensor, LayerState]:
        """Tells the mean of beta as "rate"."""
        share = self.dims.share
        query, key = fast_weight_features(q, self.nu), fast_weight_features(k, self.nu).repeat_interleave(share, 1)
        value = v.repeat_interleave(share, 1)
        if self.rate is None:
            read, weights = causal_sums(query, key, value, state["weights"], call.tokens)
        else:
            beta = self.rate(h).sigmoid().transpose(1, 2)
            call.tell("rate", lambda: beta.transpose(1, 2))
            rates = beta.repeat_interleave(share, 1)
            read, weights = delta_sums(query, key, value, rates, state["weights"], call.tokens)
        return read, {"weights": weights}


SPEC = Spec(
    id="S6", name="fast_weight", axis="mixer",
    paper="Schlag et al. 2021, arXiv 2102.11174, sections 4.2 and 5.3; Schmidhuber 1992",
    summary="delta rule: every token corrects the value that a matrix stores under its key",
    build=FastWeights, options=Options,
    traits=Traits(family="KERN", horizon="episode", state="H m Dv"),
    offers=(Feature.KEYS,),
    formula="W_t = W_(t-1) + beta_t (v_t - W_(t-1) phi(k_t)) phi(k_t)^T, o_t = W_t phi(q_t), beta_t = sigmoid(w x_t), "
    "phi(x) = (elu(x) + 1) / sum(elu(x) + 1)",
)  # fmt: skip
