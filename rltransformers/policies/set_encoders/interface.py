"""Base of encoders of elements: their options, attention with all elements in sight, layers, and pooling.

Axes: B observations, N elements, M rows that read, S rows that are read, H heads, W width, Dh width of a head.
Nothing here is causal: elements are parts of one observation, which is known whole.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from annotated_types import Ge, Le
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.blocks.residual import normalized
from rltransformers.core.errors import ConfigError
from rltransformers.core.spaces import LARGEST_LAYER
from rltransformers.core.spec import Size

Position = Literal["none", "learned", "sinusoidal"]
Activation = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class EncoderOptions:
    """Options that all encoders have.

    Attributes:
        leaf: path of the leaf that holds the elements; default: the only one that can.
        mask: path of a MultiBinary leaf with one bit per element, 1 where it exists; default: all exist.
        element_size: numbers of an element, for a flat leaf, or for a uint8 leaf [N, F] that is no image.
        patch: side of the square patches, in pixels, that are the elements of an image.
        layers: of the encoder.
        heads: of every attention; they divide the width.
        ff_width: hidden units of the feed-forward layers; default: four times the width.
        position: what tells elements their place; "none" where they are a set.
    """

    leaf: str | None = None
    mask: str | None = None
    element_size: Size | None = None
    patch: Size | None = None
    layers: Annotated[int, Ge(1), Le(256)] = 2
    heads: Annotated[int, Ge(1), Le(4096)] = 4
    ff_width: Size | None = None
    position: Position = "learned"


class Encoded(NamedTuple):
    """Elements of observations, encoded."""

    rows: Float[Tensor, "*n N W"]  # one per element, 0 where it does not exist
    exists: Bool[Tensor, "*n N"]
    pooled: Float[Tensor, "*n W"]  # of all elements that exist


def check_table(what: str, rows: int, columns: int, way_out: str) -> None:
    """Raise ConfigError if ``rows`` times ``columns`` numbers take more than ``LARGEST_LAYER`` bytes."""
    if 4 * rows * columns > LARGEST_LAYER:
        raise ConfigError(
            f"{what} takes {rows:,} x {columns:,} numbers, {4 * rows * columns / 2**20:,.0f} MiB; at most "
            f"{LARGEST_LAYER / 2**20:,.0f} are allowed: {way_out}"
        )


def split_heads(x: Float[Tensor, "B N W"], heads: int) -> Float[Tensor, "B H N Dh"]:
    """The part of every head."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def joined_heads(x: Float[Tensor, "B H N Dh"]) -> Float[Tensor, "B N W"]:
    """The inverse of ``split_heads``."""
    return x.transpose(1, 2).flatten(2)


def shares(logits: Float[Tensor, "B H M S"], exists: Bool[Tensor, "B S"] | None) -> Float[Tensor, "B H M S"]:
    """Softmax over the rows that exist; 0 for the others, and everywhere where none does."""
    if exists is None:
        return logits.softmax(-1)
    absent = ~exists[:, None, None]
    return logits.masked_fill(absent, torch.finfo(logits.dtype).min).softmax(-1).masked_fill(absent, 0.0)


def attend(
    q: Float[Tensor, "B H M Dh"],
    k: Float[Tensor, "B H S Dh"],
    v: Float[Tensor, "B H S Dv"],
    exists: Bool[Tensor, "B S"] | None = None,
) -> Float[Tensor, "B H M Dv"]:
    """softmax(q k / sqrt(Dh)) v over the rows that exist (Vaswani et al. 2017, equation 1)."""
    return shares(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), exists) @ v


class Attention(nn.Module):
    """Self-attention with heads: softmax over all elements that exist, unless a mechanism defines how they read.

    Keys have no bias: it would add the same to all logits of a query.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.value, self.out = (nn.Linear(width, width) for _ in range(3))
        self.key = nn.Linear(width, width, bias=False)

    def forward(self, x: Float[Tensor, "B N W"], exists: Bool[Tensor, "B N"]) -> Float[Tensor, "B N W"]:
        q, k, v = (split_heads(layer(x), self.heads) for layer in (self.query, self.key, self.value))
        return self.out(joined_heads(self.read(q, k, v, exists)))

    def read(
        self,
        q: Float[Tensor, "B H N Dh"],
        k: Float[Tensor, "B H N Dh"],
        v: Float[Tensor, "B H N Dh"],
        exists: Bool[Tensor, "B N"],
    ) -> Float[Tensor, "B H N Dh"]:
        """Per head; content of elements that do not exist must not matter to the others."""
        return attend(q, k, v, exists)


class FeedForward(nn.Module):
    """Two linear maps of every row with an activation between them."""

    def __init__(self, width: int, inner: int, activation: Activation) -> None:
        super().__init__()
        self.activation = activation
        self.first, self.second = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Float[Tensor, "*n W"]) -> Float[Tensor, "*n W"]:
        return self.second(self.activation(self.first(x)))


class PostNormLayer(nn.Module):
    """``LN(y + FF(y))`` with ``y = LN(x + attention(x))`` and GELU (Vaswani et al. 2017, Devlin et al. 2018)."""

    def __init__(self, width: int, attention: Attention, ff_width: int) -> None:
        super().__init__()
        self.attention = attention
        self.attention_norm, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, ff_width, F.gelu)

    def forward(self, x: Float[Tensor, "B N W"], exists: Bool[Tensor, "B N"]) -> Float[Tensor, "B N W"]:
        x = normalized(self.attention_norm, x + self.attention(x, exists))
        return normalized(self.norm, x + self.feed_forward(x))


class PostNormStack(nn.Module):
    """Layers in turn, one for every attention; where ``embedding_norm``, behind a norm of the tokens."""

    def __init__(self, width: int, attentions: Sequence[Attention], ff_width: int, embedding_norm: bool = True) -> None:
        super().__init__()
        self.embedding_norm = nn.LayerNorm(width) if embedding_norm else None
        self.layers = nn.ModuleList(PostNormLayer(width, attention, ff_width) for attention in attentions)

    def forward(self, x: Float[Tensor, "B N W"], exists: Bool[Tensor, "B N"]) -> Float[Tensor, "B N W"]:
        """Rows of elements that do not exist hold anything finite."""
        x = normalized(self.embedding_norm, x)
        for layer in self.layers:
            x = layer(x, exists)
        return x


class AttentionBlock(Attention):
    """``MAB(X, Y) = LN(h + rFF(h))`` with ``h = LN(X + Multihead(X, Y, Y))`` (Lee et al. 2019, equations 6 and 7)."""

    def __init__(self, width: int, heads: int, ff_width: int) -> None:
        super().__init__(width, heads)
        self.attention_norm, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, ff_width, F.relu)

    def forward(  # type: ignore[override]  # two sequences
        self, x: Float[Tensor, "B M W"], y: Float[Tensor, "B S W"], exists: Bool[Tensor, "B S"] | None = None
    ) -> Float[Tensor, "B M W"]:
        pairs = ((self.query, x), (self.key, y), (self.value, y))
        q, k, v = (split_heads(layer(rows), self.heads) for layer, rows in pairs)
        h = normalized(self.attention_norm, x + self.out(joined_heads(attend(q, k, v, exists))))
        return normalized(self.norm, h + self.feed_forward(h))


class Pooling(nn.Module):
    """``PMA(Z) = MAB(S, rFF(Z))`` with one learned seed S (Lee et al. 2019, equation 11)."""

    def __init__(self, width: int, heads: int, ff_width: int) -> None:
        super().__init__()
        self.seed = nn.Parameter(torch.randn(1, width))
        self.feed_forward = FeedForward(width, ff_width, F.relu)
        self.block = AttentionBlock(width, heads, ff_width)

    def forward(self, x: Float[Tensor, "B N W"], exists: Bool[Tensor, "B N"]) -> Float[Tensor, "B W"]:
        return self.block(self.seed.expand(x.shape[0], -1, -1), self.feed_forward(x), exists).squeeze(1)
