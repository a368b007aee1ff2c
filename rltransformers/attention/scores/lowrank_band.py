"""Low-rank and locality constrained attention: narrow keys far away, wide ones nearby (Guo et al. 2019).

Axes: B batch, H heads, T tokens, N key rows, K and V widths of a head, r width of the narrow queries and keys.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from rltransformers.attention import softmax
from rltransformers.attention.layer import Attention
from rltransformers.attention.plan import Plan
from rltransformers.attention.reach import check_window
from rltransformers.attention.roles import Score
from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Feature, Refusal, Size, Spec, Traits
from rltransformers.mixers.interface import Dims


class LowRankBand(Score):
    """``narrow_heads`` heads, the first, have queries and keys of r numbers, which zeros fill up to those of others."""

    def __init__(self, dims: Dims, narrow_heads: int, rank: int) -> None:
        super().__init__(dims)
        self.narrow_heads, self.rank = narrow_heads, rank
        self.widths = [narrow_heads * rank, (dims.heads - narrow_heads) * dims.head_dim]
        self.own = self.query_width = sum(self.widths)
        self.key_width = self.query_width + dims.heads * dims.value_dim

    def split_queries(self, query: Float[Tensor, "B T Q"]) -> Float[Tensor, "B H T K"]:
        """Queries head by head; products of narrow ones are divided by sqrt(r)."""
        return self.side_by_side(query, (self.dims.head_dim / self.rank) ** 0.5)

    def split(self, rows: Float[Tensor, "B *T N E"]) -> tuple[Float[Tensor, "B H *T N K"], Float[Tensor, "B H *T N V"]]:
        k, v = rows.split_with_sizes([self.own, self.key_width - self.own], -1)
        return self.side_by_side(k, 1.0), v.unflatten(-1, (self.dims.heads, -1)).movedim(-2, 1)

    def side_by_side(self, rows: Float[Tensor, "B *n Q"], factor: float) -> Float[Tensor, "B H *n K"]:
        """Narrow heads, multiplied and filled up, beside the wide ones."""
        head_dim = self.dims.head_dim
        narrow, wide = rows.split_with_sizes(self.widths, -1)
        filled = F.pad(narrow.unflatten(-1, (self.narrow_heads, self.rank)) * factor, (0, head_dim - self.rank))
        wide = wide.unflatten(-1, (self.dims.heads - self.narrow_heads, head_dim))
        return torch.cat([filled, wide], -2).movedim(-2, 1)


@dataclass(frozen=True)
class Options:
    """Options of low-rank and band heads.

    Attributes:
        narrow_heads: heads that look as far as the pattern goes, with narrow queries and keys; None takes half of all.
        rank: width r of narrow queries and keys; None takes a quarter of the head width.
        window: steps that the other heads look back, the token's own included; None takes an eighth of the memory.
    """

    narrow_heads: Size | None = None
    rank: Size | None = None
    window: Size | None = None


def build(dims: Dims, plan: Plan, options: Options) -> Attention:
    """Build attention whose first heads are narrow, and whose others look back ``window`` steps."""
    narrow_heads = max(1, dims.heads // 2) if options.narrow_heads is None else options.narrow_heads
    rank = max(1, dims.head_dim // 4) if options.rank is None else options.rank
    window = max(1, dims.memory // 8) if options.window is None else options.window
    if narrow_heads >= dims.heads:
        raise ConfigError(
            f"lowrank_band needs a head beside the narrow ones ({narrow_heads}), but there are {dims.heads}: "
            + (f"set narrow_heads to at most {dims.heads - 1}" if dims.heads > 1 else "set heads to at least 2")
        )
    if rank > dims.head_dim:
        raise ConfigError(f"lowrank_band rank ({rank}) must be at most the head width ({dims.head_dim})")
    check_window("lowrank_band", window, dims.memory)
    given = plan.pattern.heads * (dims.heads // len(plan.pattern.heads))
    wide = (each.within(window) for each in given[narrow_heads:])
    score = LowRankBand(dims, narrow_heads, rank)
    return softmax.build(
        dims, replace(plan, score=score, pattern=replace(plan.pattern, heads=(*given[:narrow_heads], *wide)))
    )


NOT_OF_NARROW = Feature.SLOTS, Feature.RETRIEVAL, Feature.COMMON_KEYS, Feature.CHANNELS
"""Features that heads of different widths cannot offer."""

SPEC = Spec(
    id="S14", name="lowrank_band", axis="mixer",
    paper="Guo et al. 2019, Low-Rank and Locality Constrained Self-Attention for Sequence Modeling, IEEE/ACM TASLP 27",
    summary="Some heads compare short queries and keys over the whole memory, the others full ones in a band.",
    build=build, options=Options, example={"mixer": {"name": "lowrank_band", "rank": 2, "window": 3}},
    traits=Traits(
        causality="C*",
        family="EXPL",
        state="memory D (training), memory (narrow_heads r + wide Dh + heads Dv) more (acting)",
        causal_form="the two parts are groups of heads, joined by the projection of the layer; wide keys are kept as "
        "long as narrow ones",
    ),
    offers=(
        *(each for each in softmax.SPEC.offers if each not in NOT_OF_NARROW),
        Feature.HEAD_PATTERNS,
    ),
    refuses=(
        Refusal(Feature.SHARED_KEYS, "heads whose keys differ in width have no key in common"),
        Refusal(Feature.TIED_KEYS, "its queries and keys are projections of their own"),
    ),
    formula="narrow heads: softmax_s(q_t k_s / sqrt(r)) over the memory, r < Dh; others the same with Dh, d < w",
)  # fmt: skip
