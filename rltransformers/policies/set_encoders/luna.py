"""The encoder of Luna: a learned sequence packs the elements, and they unpack it (Ma et al. 2021, arXiv 2106.01540).

Axes: B observations, N elements, l packed rows, W width.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.blocks.residual import normalized
from rltransformers.core.spec import Size, Spec, Traits
from rltransformers.policies.set_encoders.interface import (
    EncoderOptions,
    FeedForward,
    attend,
    check_table,
    joined_heads,
    split_heads,
)


class Reading(nn.Module):
    """Attention of one sequence to another one; where ``tied``, one map makes keys and values.

    The packing attention has no map behind its heads.
    """

    def __init__(self, width: int, heads: int, tied: bool) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.value = nn.Linear(width, width), nn.Linear(width, width)
        self.key = None if tied else nn.Linear(width, width, bias=False)

    def forward(
        self, x: Float[Tensor, "B M W"], y: Float[Tensor, "B S W"], exists: Bool[Tensor, "B S"] | None = None
    ) -> Float[Tensor, "B M W"]:
        pairs = ((self.query, x), (self.key or self.value, y), (self.value, y))
        q, k, v = (split_heads(layer(rows), self.heads) for layer, rows in pairs)
        return joined_heads(attend(q, k, v, exists))


class LunaLayer(nn.Module):
    """``Y_P = attention(P, X)``, ``Y = attention(X, Y_P)``, then ``P = LN(P + Y_P)`` and the post-norm layer for X.

    The last layer hands no P on and has no norm for it.
    """

    def __init__(self, width: int, heads: int, ff_width: int, tied: bool, last: bool) -> None:
        super().__init__()
        self.pack, self.unpack = Reading(width, heads, tied), Reading(width, heads, tied)
        self.out = nn.Linear(width, width)
        self.attention_norm, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.packed_norm = None if last else nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, ff_width, F.gelu)

    def forward(
        self, x: Float[Tensor, "B N W"], packed: Float[Tensor, "B l W"], exists: Bool[Tensor, "B N"]
    ) -> tuple[Float[Tensor, "B N W"], Float[Tensor, "B l W"]]:
        gathered = self.pack(packed, x, exists)
        x = normalized(self.attention_norm, x + self.out(self.unpack(x, gathered)))
        x = normalized(self.norm, x + self.feed_forward(x))
        return x, packed if self.packed_norm is None else normalized(self.packed_norm, packed + gathered)


class LunaStack(nn.Module):
    """Layers in turn, which hand the packed sequence on, behind a norm of tokens and one of that sequence."""

    def __init__(self, width: int, slots: int, layers: list[LunaLayer]) -> None:
        super().__init__()
        self.packed = nn.Parameter(torch.randn(slots, width) * width**-0.5)
        self.embedding_norm, self.packed_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Float[Tensor, "B N W"], exists: Bool[Tensor, "B N"]) -> Float[Tensor, "B N W"]:
        x = normalized(self.embedding_norm, x)
        packed = normalized(self.packed_norm, self.packed).expand(x.shape[0], -1, -1)
        for layer in self.layers:
            x, packed = layer(x, packed, exists)
        return x


@dataclass(frozen=True)
class Options(EncoderOptions):
    """Options of Luna.

    Attributes:
        slots: length l of the packed sequence.
        tied: whether one map makes keys and values, as by default in the authors' code.
    """

    slots: Size = 16
    tied: bool = True


def build(elements: int, width: int, options: Options) -> LunaStack:
    """Build the bidirectional encoder of section 3.2.

    Compared with github.com/XuezheMax/fairseq-apollo at 3644d20 (``LunaSentenceEncoderLayer``, three layers, behind
    our norms of tokens and packed sequence), with its weights, tied and untied, some elements absent, in float64:
    largest error 5.6e-16. There the packed sequence can be cut to the number of elements, packing can have another
    number of heads, and with sinusoidal positions it has positions of its own.

    Raises:
        ConfigError: the packed sequence would fill the memory.
    """
    check_table("the packed sequence of encoder 'luna'", options.slots, width, "lower slots")
    inner, last = options.ff_width or 4 * width, options.layers - 1
    layers = [LunaLayer(width, options.heads, inner, options.tied, layer == last) for layer in range(options.layers)]
    return LunaStack(width, options.slots, layers)


SPEC = Spec(
    id="S10-encoder", name="luna", axis="encoder", paper="Ma et al. 2021, arXiv 2106.01540, section 3",
    summary="A learned sequence packs the elements of an observation, and the elements read it; layers pass it on.",
    build=build, options=Options, example={"observation": {"encoder": {"name": "luna", "layers": 2, "slots": 3}}},
    traits=Traits(
        causality="N/A",
        horizon="-",
        time="N",
        causal_form="the packed sequence keeps its length, there it may be cut to the number of elements; packing has "
        "as many heads as unpacking; positions are of elements alone, there sinusoids of the packed sequence, too",
    ),
    formula="Y_P = attention(P, X), Y = attention(X, Y_P), P <- LN(P + Y_P), X <- LN(h + FF(h)), h = LN(X + Y)",
)  # fmt: skip
