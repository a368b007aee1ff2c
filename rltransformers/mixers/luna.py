"""Luna, causal: a learned sequence packs the episode so far into a fixed number of sums, which tokens unpack.

Axes: B batch, T tokens, H heads, G key-value heads, l packed vectors, Dh width of a head.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.spec import Feature, Size, Spec, Traits
from rltransformers.functional.call import Call
from rltransformers.functional.modules import wide
from rltransformers.functional.prefixes import prefix_attention
from rltransformers.mixers.interface import Dims, LayerState
from rltransformers.mixers.kernel import HeadsMixer


def packing_weights(logits: Float[Tensor, "*n l"], activation: str) -> Float[Tensor, "*n l"]:
    """omega: ``log_2(1 + 2^x)`` as in the authors' code, or ``elu(x) + 1``; 1 for 0 in both. Float32 at least."""
    logits = wide(logits)
    return F.elu(logits) + 1 if activation == "elu" else F.softplus(logits * math.log(2)) / math.log(2)


@dataclass(frozen=True)
class Options:
    """Options of Luna.

    Attributes:
        slots: length l of the packed sequence.
        activation: of the packing weights; "softplus" of base 2, or elu(x) + 1.
    """

    slots: Size = 16
    activation: Literal["softplus", "elu"] = "softplus"


class Luna(HeadsMixer):
    """``u_t = softmax(f(q, k, a)_t)``, ``o_t = f(u, a, v)_t`` with ``f(x, y, z)_t = x_t sum_(s <= t) y_s^T z_s / n_t``.

    ``a_s`` are the packing weights of token s, n_t the tokens of its episode. Source: Ma et al. 2021
    (arXiv 2106.01540), section 3.4. The queries of the packing attention are a parameter of every layer, there a
    projection of one learned sequence; k and v are two projections, there tied by default.
    """

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__(dims)
        self.activation = options.activation
        self.packing_keys = dims.projection(dims.width, dims.kv_heads * dims.head_dim)
        self.packing_queries = nn.Parameter(torch.randn(dims.kv_heads, options.slots, dims.head_dim))

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Packed keys and values, not yet divided by the tokens of the episode."""
        heads, slots = self.dims.heads, self.packing_queries.shape[1]
        return {
            "projected_keys": (heads, self.dims.head_dim, slots),
            "projected_values": (heads, slots, self.dims.value_dim),
        }

    def read(
        self, h: Tensor, q: Tensor, k: Tensor, v: Tensor, state: LayerState, call: Call
    ) -> tuple[Tensor, LayerState]:
        share, scale = self.dims.share, 1 / math.sqrt(self.dims.head_dim)
        packing_keys = self.packing_keys(h).unflatten(-1, (self.dims.kv_heads, -1)).transpose(1, 2)
        weights = packing_weights(packing_keys @ self.packing_queries.transpose(-1, -2) * scale, self.activation)
        k, v, weights = (each.repeat_interleave(share, 1) for each in (k, v, weights))
        count = (call.tokens.p + 1)[:, None, :, None].to(weights.dtype)
        mixed, state = prefix_attention(q * scale / count, k, v, weights, weights, state, call.tokens)
        return mixed / count, state


SPEC = Spec(
    id="S10", name="luna", axis="mixer", paper="Ma et al. 2021, arXiv 2106.01540",
    summary="a learned sequence packs the episode so far into a few vectors, tokens unpack them",
    build=Luna, options=Options,
    traits=Traits(
        causality="X", family="KERN", horizon="episode", state="H l (Dh + Dv)",
        causal_form="the causal variant of the paper: running means in place of a softmax over tokens, and the packed "
        "sequence is not handed to the next layer; the tokens are those of the episode",
    ),
    offers=(Feature.KEYS,),
    formula="a_s = omega(P k'_s / sqrt(Dh)), u_t = softmax(sum_(s <= t) (q_t k_s / sqrt(Dh)) a_s / n_t), "
    "o_t = sum_(s <= t) (u_t a_s) v_s / n_t",
)  # fmt: skip
