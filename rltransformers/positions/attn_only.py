"""Absolute encoding of queries and keys, at every layer; values and the stream itself know no positions."""

from dataclasses import dataclass

from torch import Tensor

from rltransformers.core.spec import Feature, Size, Spec, Traits
from rltransformers.mixers.interface import Dims
from rltransformers.positions.interface import Acts, Codes, Position


@dataclass(frozen=True)
class Options:
    """Rows of a learned table PI; without, PI is sinusoidal and episodes may have any length."""

    max_len: Size | None = None


class AttentionOnly(Position):
    """q = (x + PI[p]) W_q, k = (x + PI[p]) W_k, v = x W_v, with one PI for all layers."""

    acts = Acts.CODE
    shared = True

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        self.codes = Codes(dims.width, options.max_len)
        self.places = options.max_len

    def code(self, p: Tensor, like: Tensor) -> Tensor:
        return self.codes(p, like)


SPEC = Spec(
    id="P4", name="attn_only", axis="position", paper="Carion et al. 2020, arXiv 2005.12872, figure 10",
    summary="Adds an encoding of the episode position to the inputs of the query and key projections of every "
            "layer, not to values.",
    build=AttentionOnly, options=Options,
    traits=Traits(causal_form="the position of compressed slots and of tree nodes is that of their last token"),
    acts_at="inside attention", offers=(Feature.PLACES,), needs=(Feature.SCORES, Feature.PRODUCTS),
    formula="l_ts = (x_t + PI(p_t)) W_q ((x_s + PI(p_s)) W_k) / sqrt(Dh), v_s = x_s W_v",
)  # fmt: skip
