"""Base of GaLiTe and AGaLiTe: features that are products, gates per number for features and values.

Axes: B batch, T tokens, D width, H heads, G key-value heads, K and V widths of a head, E rows of features, m = E K.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor

from rltransformers.functional.call import Call, Tokens
from rltransformers.functional.modules import wide
from rltransformers.functional.scan import scan
from rltransformers.mixers.interface import Dims, LayerState, Mixed
from rltransformers.mixers.kernel import HeadsMixer

EPS = 1e-5
"""Added to denominators; features may all be 0."""
PAPER = "Pramanik et al. 2024, TMLR, arXiv 2310.15719"
GATES = "phi(x) = relu(x) (x) relu(W_p x), g = sigmoid(W_g x) (x) sigmoid(W_p x), b = sigmoid(W_b x)"
"""Of formulas."""


@dataclass(frozen=True)
class GatedOptions:
    """Options of both.

    Attributes:
        eta: factor E: features of a head are products of its Dh rectified numbers with E others.
        relu: rectify what the layer gives, as the source does in front of a gate.
    """

    eta: Annotated[int, Ge(1), Le(64)] = 4
    relu: bool = True


@dataclass(frozen=True)
class Writes:
    """What tokens write and ask, per key-value head, float32 at least.

    Attributes:
        query: features of the queries of a key-value head.
        key, keep_key: features times their gate, and what the gate leaves of earlier ones.
        value, keep_value: the same of values.
    """

    query: Float[Tensor, "B T G share m"]
    key: Float[Tensor, "B T G m"]
    keep_key: Float[Tensor, "B T G m"]
    value: Float[Tensor, "B T G V"]
    keep_value: Float[Tensor, "B T G V"]


def products(x: Float[Tensor, "*n E"], y: Float[Tensor, "*n K"]) -> Float[Tensor, "*n m"]:
    """All products of two numbers."""
    return (x[..., None] * y[..., None, :]).flatten(-2)


class GatedProducts(HeadsMixer):
    """What tokens write, the sum of their features ``s_t = (1 - g) s_(t-1) + g phi(k)``, and what is made of it."""

    def __init__(self, dims: Dims, options: GatedOptions) -> None:
        super().__init__(dims)
        self.eta, self.relu = options.eta, options.relu
        self.features = self.eta * dims.head_dim
        groups, rows = dims.kv_heads, self.eta
        self.gate_widths = [groups * n for n in (dims.value_dim, dims.head_dim, rows, rows)] + [dims.heads * rows]
        self.gates = dims.projection(dims.width, sum(self.gate_widths))

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """s, to which the sums of the class come."""
        return {"norm": (self.dims.kv_heads, self.features)}

    def forward(self, h: Float[Tensor, "B T D"], state: LayerState, call: Call) -> Mixed:
        mixed = super().forward(h, state, call)
        return Mixed(mixed.out.relu(), mixed.state) if self.relu else mixed

    def read(
        self, h: Tensor, q: Tensor, k: Tensor, v: Tensor, state: LayerState, call: Call
    ) -> tuple[Tensor, LayerState]:
        gates = self.gates(h)
        with torch.autocast(h.device.type, enabled=False):
            writes = self.writes(gates, q, k, v)
            norm, after = scan(writes.keep_key, writes.key, state["norm"], call.tokens)
            mixed, sums = self.weigh(writes, writes.query @ norm[..., None], state, call.tokens)
        return mixed.flatten(2, 3).transpose(1, 2), {**sums, "norm": after}

    def writes(
        self,
        gates: Float[Tensor, "B T X"],
        q: Float[Tensor, "B H T K"],
        k: Float[Tensor, "B G T K"],
        v: Float[Tensor, "B G T V"],
    ) -> Writes:
        """What the projections of the tokens say."""
        gates, q, k, v = (wide(x) for x in (gates, q, k, v))
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        b, g, p1, p3, p2 = gates.split(self.gate_widths, -1)
        b, g, p1, p3 = (x.unflatten(-1, (self.dims.kv_heads, -1)) for x in (b, g, p1, p3))
        b, gate = b.sigmoid(), products(p3.sigmoid(), g.sigmoid())
        query = products(p2.unflatten(-1, (self.dims.heads, -1)).relu(), q.relu())
        key = products(p1.relu(), k.relu())
        return Writes(query.unflatten(2, (-1, self.dims.share)), gate * key, 1 - gate, b * v, 1 - b)

    @abstractmethod
    def weigh(
        self, writes: Writes, total: Float[Tensor, "B T G share 1"], state: LayerState, tokens: Tokens
    ) -> tuple[Float[Tensor, "B T G share V"], LayerState]:
        """Values by query, divided by the ``total`` of their weights, and the new sums beside s."""
