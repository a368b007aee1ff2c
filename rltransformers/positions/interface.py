"""Where a position encoding may act: on the input, on queries and keys, on the scores, on the values.

Axes: B batch, H heads, T tokens, N keys, L distances, K head width, V value width, D model width, f pairs of
    channels.
Encodings inside attention know distances only. What they make of a distance alone (``of_distances``, ``factors``,
``key_vectors``, ``circle``) is separate from what they make of a query, so that acting computes it once per change of
the weights and not at every step.
"""

from enum import Flag, auto
from typing import Protocol

from jaxtyping import Float, Int
from torch import Tensor, nn


class Sizes(Protocol):
    """Sizes of a layer that encodings are made from: D, heads, and the width of a query/key and of a value head."""

    @property
    def width(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def value_dim(self) -> int: ...


class Acts(Flag):
    """Places where an encoding does something."""

    NOWHERE = 0
    INPUT = auto()
    QUERY = auto()
    ROTATION = auto()
    FACTOR = auto()
    SCORE = auto()
    KEY_SCORE = auto()
    VALUE = auto()


INSIDE_ATTENTION = Acts.QUERY | Acts.ROTATION | Acts.FACTOR | Acts.SCORE | Acts.KEY_SCORE | Acts.VALUE


class Position(nn.Module):
    """Does nothing; an encoding names the places where it acts and overrides the methods of these places.

    Attributes:
        acts: the places.
        shared: one instance serves all layers.
        places: episode positions that it has an encoding for, from 0 on; None for all.
        timesteps: the same of environment steps.
    """

    acts = Acts.NOWHERE
    shared = False
    places: int | None = None
    timesteps: int | None = None

    def embed(
        self, x: Float[Tensor, "B T D"], p: Int[Tensor, "B T"], timestep: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T D"]:
        """INPUT: the input with positions."""
        raise NotImplementedError("an encoding that acts on the input defines embed")

    def check_places(self, p: Int[Tensor, "*n"], timestep: Int[Tensor, "*n"]) -> None:
        """INPUT: raise DataError unless the encoding has all of these places; looks at data, so it is not traced."""

    def content_query(self, q: Float[Tensor, "B H T K"]) -> Float[Tensor, "B H T K"]:
        """QUERY: the query as it meets key contents."""
        raise NotImplementedError("an encoding that acts on queries defines content_query")

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
        """SCORE: what is added to the scores at the distances of ``table``: [B, H, T, L], or [H, L] without queries."""
        raise NotImplementedError("an encoding that acts on scores defines scores")

    def key_vectors(self, distance: Int[Tensor, " L"], like: Tensor) -> Float[Tensor, "L H K"]:
        """KEY_SCORE: what keys at distances are multiplied with, in the dtype of ``like``; the products are scores."""
        raise NotImplementedError("an encoding that scores keys defines key_vectors")

    def value_table(self, length: int) -> Float[Tensor, "L V"]:
        """VALUE: vectors added to the values at the distances 0 .. length - 1."""
        raise NotImplementedError("an encoding that acts on values defines value_table")
