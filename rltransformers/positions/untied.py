"""Untied scores of contents and of positions, each with projections of its own (TUPE, Ke et al. 2021)."""

from dataclasses import dataclass

from torch import Tensor, nn

from rltransformers.core.spec import Feature, Refusal, Size, Spec, Traits
from rltransformers.mixers.interface import Dims
from rltransformers.positions.interface import Acts, Codes, Position


@dataclass(frozen=True)
class Options:
    """Rows of a learned table PI; without, PI is sinusoidal and episodes may have any length."""

    max_len: Size | None = None


class Untied(Position):
    """[(x_t W_q) (x_s W_k) + (PI[p_t] U_q) (PI[p_s] U_k)] / sqrt(2 Dh); U_q, U_k and PI serve all layers.

    Queries and keys are twice as wide: the half that knows the position stands beside the half that knows the content.
    """

    acts = Acts.CHANNELS
    shared = True

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        self.codes = Codes(dims.width, options.max_len)
        self.places = options.max_len
        self.channels = dims.head_dim
        self.query = nn.Linear(dims.width, dims.heads * dims.head_dim, bias=False)
        self.key = nn.Linear(dims.width, dims.kv_heads * dims.head_dim, bias=False)

    def query_channels(self, p: Tensor, like: Tensor) -> Tensor:
        return self.query(self.codes(p, like))

    def key_channels(self, p: Tensor, like: Tensor) -> Tensor:
        return self.key(self.codes(p, like))


SPEC = Spec(
    id="P5", name="untied", axis="position", paper="Ke et al. 2021, arXiv 2006.15595, equation 7",
    summary="Adds a score of the two positions, from projections of their own that all layers share.",
    build=Untied, options=Options,
    traits=Traits(
        state="memory kv_heads Dh more (acting)",
        causal_form="the position of compressed slots and of tree nodes is that of their last token; no scores of"
                    " their own for a first token [CLS]; the authors' code normalizes PI and has biases in its "
                    "projections",
    ),
    acts_at="inside attention", offers=(Feature.PLACES,), needs=(Feature.SCORES, Feature.PRODUCTS, Feature.CHANNELS),
    refuses=(Refusal(Feature.TIED_KEYS, "queries and keys have projections of their own for positions"),),
    formula="l_ts = (x_t W_q (x_s W_k) + PI(p_t) U_q (PI(p_s) U_k)) / sqrt(2 Dh)",
)  # fmt: skip
