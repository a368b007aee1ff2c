"""Stable Hadamard memory: a matrix per head whose every number a token strengthens or weakens by a factor of its own.

Axes: B batch, T tokens, D width, H heads, G key-value heads, K and V widths of a key and a value, C calibrations.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Float, Int
from torch import Tensor, nn

from rltransformers.core.spec import Feature, Spec, Traits
from rltransformers.functional.call import Call
from rltransformers.functional.draws import PRIME, mix
from rltransformers.functional.modules import wide, wide_type
from rltransformers.functional.scan import scan
from rltransformers.mixers.interface import Dims, LayerState
from rltransformers.mixers.kernel import HeadsMixer

EPS = 1e-5


def scatter(p: Int[Tensor, "B T"], layer: int, count: int) -> Int[Tensor, "B T"]:
    """A number below ``count`` for every episode position and layer, without a pattern."""
    return mix(p, (layer + 1) ** 5 * 1_000_003 % PRIME - 1) % count


def shares(x: Float[Tensor, "*n K"]) -> Float[Tensor, "*n K"]:
    """Positive parts, divided by their sum; float32 at least."""
    x = wide(x).relu()
    return x / (x.sum(-1, keepdim=True) + EPS)


@dataclass(frozen=True)
class Options:
    """Options of stable Hadamard memory.

    Attributes:
        calibrations: learned vectors theta, one of which acts at an episode position.
        growth: a factor is at most 1 + growth. With 1, as published, what is stored may double with every token: it
            leaves float32 after 128 tokens of factors near 2. With 0 nothing that is stored ever grows.
    """

    calibrations: Annotated[int, Ge(1), Le(65536)] = 128
    growth: Annotated[float, Ge(0), Le(1)] = 1.0


class StableHadamardMemory(HeadsMixer):
    """``M_t = M_(t-1) * C_t + k_t (eta_t v_t)^T``, ``C_t = 1 + tanh(w_c(x_t) theta_t^T)``, ``o_t = M_t^T q_t``.

    Keys and queries are positive parts, divided by their sums; theta_t is one of the learned vectors.
    Where the change of a factor is positive, it is multiplied by ``growth``.
    Source: Le et al. 2025 (arXiv 2410.10132), section 3.3.
    """

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__(dims)
        self.growth = options.growth
        self.strength = dims.projection(dims.width, dims.kv_heads)
        self.calibrate = dims.projection(dims.width, dims.kv_heads * dims.head_dim)
        table = torch.empty(options.calibrations, dims.kv_heads * dims.value_dim)
        self.theta = nn.Parameter(nn.init.xavier_uniform_(table))

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """The matrices, transposed."""
        return {"sum": (self.dims.kv_heads, self.dims.head_dim, self.dims.value_dim)}

    def factors(self, h: Float[Tensor, "B T D"], p: Int[Tensor, "B T"]) -> Float[Tensor, "B T G K V"]:
        """C, in float32 at least."""
        heads = self.dims.kv_heads
        theta = self.theta[scatter(p, self.dims.layer, len(self.theta))].unflatten(-1, (heads, 1, -1))
        with torch.autocast(h.device.type, enabled=False):  # errors of factors multiply over an episode
            of_token = self.calibrate(h.to(self.calibrate.weight.dtype)).unflatten(-1, (heads, -1, 1))
        dtype = wide_type(theta)
        change = torch.tanh(theta.to(dtype) * of_token.to(dtype))
        return 1 + torch.where(change > 0, self.growth * change, change)

    def read(
        self, h: Tensor, q: Tensor, k: Tensor, v: Tensor, state: LayerState, call: Call
    ) -> tuple[Tensor, LayerState]:
        """Tells the mean of eta as "strength"."""
        strength = self.strength(h).sigmoid()
        call.tell("strength", lambda: strength)
        key, value = (x.transpose(1, 2) for x in (shares(k), v))
        entries = key[..., None] * (strength[..., None] * value)[..., None, :]
        rows, after = scan(self.factors(h, call.tokens.p), entries, state["sum"], call.tokens)
        query = shares(q).transpose(1, 2).unflatten(2, (self.dims.kv_heads, -1))
        with torch.autocast(h.device.type, enabled=False):
            out = query.to(rows.dtype) @ rows
        return out.flatten(2, 3).transpose(1, 2), {"sum": after}


SPEC = Spec(
    id="N9", name="shm", axis="mixer", paper="Le et al. 2025, arXiv 2410.10132",
    summary="stable Hadamard memory: a token multiplies every number of a matrix by a factor, then adds its key "
            "times its value",
    build=StableHadamardMemory, options=Options,
    traits=Traits(
        family="KERN", horizon="episode", state="G Dh Dv",
        causal_form="theta follows layer and episode position; the paper draws it at every step, so that acting is not "
        "what was trained, and the authors' code for POPGym always takes the first; a matrix per key-value head, of "
        "which `heads: 1` is the published one; `growth` is an addition",
        half=0.3, rounding="a stored number is a product of the factors of all tokens since, each of which is rounded",
    ),
    offers=(Feature.KEYS,),
    formula="M_t = M_(t-1) * C_t + k_t (eta_t v_t)^T, C_t = 1 + tanh(w_c(x_t) theta_t^T), o_t = M_t^T q_t, q, k = "
    "relu / sum, theta_t = theta[hash(p_t, layer)]",
)  # fmt: skip
