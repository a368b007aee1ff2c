"""Collaborative heads: one wide query and one wide key, which every head weighs channel by channel.

Axes: B batch, H heads, T tokens, N key rows, K width of the common query and key, V value width.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rltransformers.attention.roles import HeadOptions, Score
from rltransformers.core.spec import Feature, Refusal, Size, Spec, Traits
from rltransformers.mixers.interface import Dims


def slices(heads: int, width: int) -> Float[Tensor, "H K"]:
    """Every head its own share of the channels: concatenated heads."""
    owner = torch.arange(width) * heads // width
    return (owner == torch.arange(heads)[:, None]).to(torch.get_default_dtype())


@dataclass(frozen=True)
class Options(HeadOptions):
    """Options of collaborative heads.

    Attributes:
        width: common channels K; None takes ``heads Dh``, as many as separate heads have. Fewer save weights
            and memory.
        initial: the channels of the heads are "slices" of the common ones at first, or drawn from N(0, 0.04): "normal".
    """

    width: Size | None = None
    initial: Literal["slices", "normal"] = "slices"

    def inside(self, dims: Dims) -> Dims:
        """Queries and keys are K wide in every head."""
        return replace(dims, head_dim=self.width or dims.heads * dims.head_dim)


class Collaborative(Score):
    """``(q_t m_h) k_s / sqrt(K / H)`` with one q and one k for all heads; K is the head width of ``dims``."""

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__(dims)
        heads, width = dims.heads, dims.head_dim
        self.own = self.query_width = width
        self.key_width = width + heads * dims.value_dim
        self.mixing = nn.Parameter(torch.randn(heads, width) * 0.2)
        if options.initial == "slices" and not self.mixing.is_meta:
            self.mixing.data.copy_(slices(heads, width))

    def split_queries(self, query: Float[Tensor, "B T K"]) -> Float[Tensor, "B H T K"]:
        """The query as every head weighs it; products are divided by sqrt(K) afterwards."""
        mixing = (self.mixing * self.dims.heads**0.5).to(query.dtype)
        return query[:, None] * mixing[:, None]

    def split(self, rows: Float[Tensor, "B *T N E"]) -> tuple[Float[Tensor, "B H *T N K"], Float[Tensor, "B H *T N V"]]:
        """The one key for every head, not copied, and values head by head."""
        heads = self.dims.heads
        k, v = rows.split_with_sizes([self.own, self.key_width - self.own], -1)
        return k[:, None].expand(-1, heads, *[-1] * (k.dim() - 1)), v.unflatten(-1, (heads, -1)).movedim(-2, 1)


SPEC = Spec(
    id="H4", name="collaborative", axis="head_mixing",
    paper="Cordonnier, Loukas & Jaggi 2020, arXiv 2006.16362, section 3",
    summary="All heads share one query and one key and weigh their channels by a vector of their own.",
    build=Collaborative, options=Options, example={"head_mixing": {"name": "collaborative", "width": 8}},
    traits=Traits(family="EXPL", state="memory D (training), memory (K + heads Dv) more (acting)"),
    needs=(Feature.COMMON_KEYS,),
    refuses=(
        Refusal(Feature.SHARED_KEYS, "all of its heads share one key already"),
        Refusal(Feature.TIED_KEYS, "its query is weighed by every head, its key is not"),
        Refusal(Feature.STORE, "what is stored are keys of single heads"),
        Refusal(Feature.PLACES, "positions are added to queries and keys of single heads"),
    ),
    formula="logit_h = (q_t * m_h) k_s / sqrt(K / H), q and k of width K for all heads",
)  # fmt: skip
