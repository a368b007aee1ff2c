"""GaLiTe: gated linear attention whose sum of products forgets number by number.

Axes: B batch, T tokens, G key-value heads, K and V widths of a head, E rows of features, m = E K.
"""

from jaxtyping import Float
from torch import Tensor

from rltransformers.core.spec import Feature, Spec, Traits
from rltransformers.functional.call import Tokens
from rltransformers.functional.scan import scan
from rltransformers.mixers.gated_products import EPS, GATES, PAPER, GatedOptions, GatedProducts, Writes
from rltransformers.mixers.interface import LayerState


class GaLiTe(GatedProducts):
    """``C_t = (1 - b)(1 - g)^T * C_(t-1) + (b v)(g phi(k))^T``, ``o_t = C_t phi(q) / (s_t phi(q) + eps)``.

    Every number of C has a decay of its own, so a segment keeps C of all its tokens.
    """

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """C and s."""
        return {"sum": (self.dims.kv_heads, self.dims.value_dim, self.features), **super().state_shapes()}

    def weigh(
        self, writes: Writes, total: Float[Tensor, "B T G share 1"], state: LayerState, tokens: Tokens
    ) -> tuple[Float[Tensor, "B T G share V"], LayerState]:
        """Values by query, divided by the ``total`` of their weights, and the new sums."""
        keep = writes.keep_value[..., None] * writes.keep_key[..., None, :]
        added = writes.value[..., None] * writes.key[..., None, :]
        sums, after = scan(keep, added, state["sum"], tokens)
        return writes.query @ sums.transpose(-1, -2) / (total + EPS), {"sum": after}


SPEC = Spec(
    id="N10-exact", name="galite", axis="mixer", paper=PAPER,
    summary="gated linear attention with a forget rate for every feature and channel of its matrix",
    build=GaLiTe, options=GatedOptions,
    traits=Traits(
        family="KERN", horizon="episode", state="G E Dh (Dv + 1)",
        causal_form="the matrix decays by (1 - b)(1 - g), as in the paper, in the authors' code by 1 - b g; 1e-5 "
                    "is added to the denominator, there 1e-10; the second factor of phi(q) is a projection of the"
                    " token, there of the query",
        single=1e-4, rounding="a query whose rectified features are all near 0 divides one small sum by another",
    ),
    offers=(Feature.KEYS,),
    formula="C_t = (1 - b)(1 - g)^T * C_(t-1) + (b v)(g phi(k))^T, s_t = (1 - g) s_(t-1) + g phi(k), "
    f"o_t = relu(W_o C_t phi(q) / (s_t phi(q) + 1e-5)), {GATES}",
)  # fmt: skip
