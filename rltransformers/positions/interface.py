"""Where a position encoding may act: on the input, on queries and keys, on the scores, on the values.

Axes: B batch, H heads, G key heads, T tokens, N keys, L distances, K head width, V value width, D model width,
    C channels of an encoding, f pairs of channels.
Encodings inside attention know distances, or, of queries and keys, the episode position. What they make of a distance
alone (``of_distances``, ``factors``, ``key_vectors``, ``circle``) is separate from what they make of a query, so that
acting computes it once per change of the weights and not at every step.
"""

from collections.abc import Callable
from enum import Flag, auto
from typing import Annotated, Any

import torch
from annotated_types import Ge
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.errors import DataError
from rltransformers.functional.modules import frequencies
from rltransformers.mixers.interface import Dims


class Acts(Flag):
    """Places where an encoding does something."""

    NOWHERE = 0
    INPUT = auto()
    EVERY_LAYER = auto()
    CODE = auto()
    CHANNELS = auto()
    QUERY = auto()
    ROTATION = auto()
    FACTOR = auto()
    SCORE = auto()
    KEY_SCORE = auto()
    LABEL = auto()
    VALUE = auto()


BY_PLACE = Acts.CODE | Acts.CHANNELS
"""Queries and keys know their episode position; a key row that is cached holds it."""

BY_DISTANCE = Acts.ROTATION | Acts.FACTOR | Acts.SCORE | Acts.KEY_SCORE | Acts.VALUE
INSIDE_ATTENTION = BY_PLACE | BY_DISTANCE | Acts.QUERY | Acts.LABEL


class Position(nn.Module):
    """Does nothing; an encoding names the places where it acts and overrides the methods of these places.

    Attributes:
        acts: the places.
        shared: one instance serves all layers.
        places: episode positions that it has an encoding for, from 0 on; None for all.
        timesteps: the same of environment steps.
        channels: how many it puts beside those of a query and of a key.
        common: names of the parameters that the instances of all layers have in common.
        scale: products of queries and keys are multiplied by it; 1 where it scores nothing by pair.
    """

    acts = Acts.NOWHERE
    shared = False
    places: int | None = None
    timesteps: int | None = None
    channels: int = 0
    common: tuple[str, ...] = ()
    scale: float = 1.0

    def __init__(self, dims: Dims | None = None, options: Any = None) -> None:
        super().__init__()

    def share(self, first: "Position") -> None:
        """Take what layers have in common from the instance of the first layer."""
        for name in self.common:
            setattr(self, name, getattr(first, name))

    def common_parameters(self) -> list[nn.Parameter]:
        """Parameters that serve all layers."""
        return list(self.parameters()) if self.shared else [getattr(self, name) for name in self.common]

    def embed(
        self, x: Float[Tensor, "B T D"], p: Int[Tensor, "B T"], timestep: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T D"]:
        """INPUT: the input with positions."""
        raise NotImplementedError("an encoding that acts on the input defines embed")

    def embed_layer(
        self, x: Float[Tensor, "B T D"], p: Int[Tensor, "B T"], timestep: Int[Tensor, "B T"], layer: int
    ) -> Float[Tensor, "B T D"]:
        """EVERY_LAYER: the input of a layer, counted from 1, in place of ``embed`` in front of all of them.

        A stack that applies one layer again and again calls ``embed`` before every application and tells its number.
        """
        raise NotImplementedError("an encoding that acts on the input of every layer defines embed_layer")

    def check_places(self, p: Int[Tensor, "*n"], timestep: Int[Tensor, "*n"]) -> None:
        """Raise DataError unless the encoding has all of these places; looks at data, so it is not traced."""
        for what, index, rows in (("episode position", p, self.places), ("environment step", timestep, self.timesteps)):
            if rows is not None:
                check_table(what, index, rows)

    def code(self, p: Int[Tensor, "*n"], like: Tensor) -> Float[Tensor, "*n D"]:
        """CODE: what is added to the normalized inputs that queries and keys are made of, but not values."""
        raise NotImplementedError("an encoding that is added to queries and keys defines code")

    def query_channels(self, p: Int[Tensor, "*n"], like: Tensor) -> Float[Tensor, "*n HC"]:
        """CHANNELS: what stands beside the channels of every query head; the products with those of keys are added."""
        raise NotImplementedError("an encoding that has channels defines query_channels")

    def key_channels(self, p: Int[Tensor, "*n"], like: Tensor) -> Float[Tensor, "*n GC"]:
        """CHANNELS: the same of every key head."""
        raise NotImplementedError("an encoding that has channels defines key_channels")

    def content_query(self, q: Float[Tensor, "B H T K"]) -> Float[Tensor, "B H T K"]:
        """QUERY: the query as it meets key contents; unchanged by default."""
        return q

    def circle(self, back: Int[Tensor, "*n"], like: Tensor) -> Float[Tensor, "*n 2 f"]:
        """ROTATION: cosine and sine by which a row that lies ``back`` tokens behind the last one is turned."""
        raise NotImplementedError("an encoding that turns queries and keys defines circle")

    def turn(self, heads: Float[Tensor, "*n K"], circle: Float[Tensor, "*m 2 f"]) -> Float[Tensor, "*n K"]:
        """ROTATION: queries or keys, turned; only differences of places matter."""
        raise NotImplementedError("an encoding that turns queries and keys defines turn")

    def factors(self, distance: Int[Tensor, " L"], like: Tensor) -> Float[Tensor, "L H"]:
        """FACTOR: by what products of queries and keys at distances are multiplied, in the dtype of ``like``."""
        raise NotImplementedError("an encoding that multiplies products of queries and keys defines factors")

    def multiplied(self, products: Float[Tensor, "B H T N"], factors: Float[Tensor, "b H t N"]) -> Tensor:
        """FACTOR: scaled products of queries and keys with the factors of their distances; nothing is added before."""
        return products * factors

    def of_distances(self, distance: Int[Tensor, " L"], like: Tensor) -> Float[Tensor, "L X"]:
        """SCORE: what distances mean under today's weights, in the dtype of ``like``; X is up to the encoding."""
        raise NotImplementedError("an encoding that acts on scores defines of_distances")

    def scores(self, q: Float[Tensor, "B H T K"], table: Float[Tensor, "L X"]) -> Float[Tensor, "..."]:
        """SCORE: what is added to the scores at the distances of ``table``: [B, H, T, L], or [H, L] without queries.

        By default X is K: scaled products of queries with vectors that all heads share.
        """
        return q @ table.T * q.shape[-1] ** -0.5

    def key_vectors(self, distance: Int[Tensor, " L"], like: Tensor) -> Float[Tensor, "L H K"]:
        """KEY_SCORE: what keys at distances are multiplied with, in the dtype of ``like``; the products are scores."""
        raise NotImplementedError("an encoding that scores keys defines key_vectors")

    def label_scores(self, q: Float[Tensor, "B H T K"]) -> Float[Tensor, "B H T 1"]:
        """LABEL: what is added to the scores of keys that stand outside the window: first tokens, globals, slots."""
        raise NotImplementedError("an encoding that labels keys defines label_scores")

    def value_table(self, length: int, like: Tensor) -> Float[Tensor, "L V"]:
        """VALUE: vectors added to the values at the distances 0 .. length - 1, on the device of ``like``."""
        raise NotImplementedError("an encoding that acts on values defines value_table")


def at_places(
    position: Position,
    rows: Float[Tensor, "B S X"],
    p: Int[Tensor, "*b S"],
    weight: Float[Tensor, "X D"],
    channels: Callable[[Tensor, Tensor], Tensor],
    heads: int,
) -> Float[Tensor, "B S Z"]:
    """Queries or keys with their places: plus the projected code, or with channels beside those of every head.

    Args:
        weight: projects inputs to these rows.
        channels: ``query_channels`` or ``key_channels`` of the position.
    """
    if Acts.CODE in position.acts:
        return rows + F.linear(position.code(p, rows), weight)
    own, others = (part.unflatten(-1, (heads, -1)) for part in (rows, channels(p, rows)))
    return torch.cat([own, others.expand(*rows.shape[:2], -1, -1)], -1).flatten(2)


def head_products(q: Float[Tensor, "B H T K"], table: Float[Tensor, "L HK"]) -> Float[Tensor, "B H T L"]:
    """Products with a vector per distance and head: one product per head, for all streams and tokens at once."""
    batch, heads, time, width = q.shape
    r = table.view(-1, heads, width).permute(1, 2, 0)
    if time == 1:
        return torch.bmm(q.squeeze(2).transpose(0, 1), r).transpose(0, 1).unsqueeze(2)
    q = q.transpose(0, 1).reshape(heads, batch * time, width)
    return torch.bmm(q, r).view(heads, batch, time, -1).transpose(0, 1)


Base = Annotated[float, Ge(1)]
"""Ratio of the longest to the shortest wavelength; below 1 angles would grow without bound."""


def sinusoid(place: Tensor, width: int, like: Tensor, base: float | Tensor = 10_000.0) -> Float[Tensor, "*n D"]:
    """Interleaved [sin, cos] of ``place`` at ``width`` / 2 frequencies, in the dtype of ``like`` (arXiv 1706.03762)."""
    half = frequencies(width + width % 2, base, like)
    angle = place[..., None].to(half.dtype) * half
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)[..., :width].to(like.dtype)


class Codes(nn.Module):
    """PI[p]: rows of a learned table of ``max_len``, or sines and cosines, which have no end, where that is None."""

    def __init__(self, width: int, max_len: int | None) -> None:
        super().__init__()
        self.width = width
        self.table = None if max_len is None else nn.Parameter(torch.randn(max_len, width) * 0.02)

    def forward(self, p: Int[Tensor, "*n"], like: Tensor) -> Float[Tensor, "*n D"]:
        """Codes of episode positions."""
        return sinusoid(p, self.width, like) if self.table is None else torch.embedding(self.table, p)


def check_table(what: str, index: Int[Tensor, "*n"], rows: int) -> None:
    """Raise DataError unless a table of ``rows`` rows has every index."""
    least, largest = (int(end) for end in index.aminmax())
    if least < 0:
        raise DataError(f"{what} {least} is outside the position table of {rows} rows, which begins at 0")
    if largest >= rows:
        raise DataError(
            f"{what} {largest} is outside the position table of {rows} rows; "
            f"raise max_len of the position, or choose a relative position (trxl, rope, alibi)"
        )
