"""Rows outside the stream that tokens may look at: the elements of an observation, a set or sequence of its own.

Axes: B batch, T tokens of a call, S tokens that have elements, N elements, D model width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

EVERY = slice(None)
"""All tokens."""


@dataclass(frozen=True)
class Context:
    """Elements of tokens of one call; a token sees its own ones alone, so that nothing of the future is seen.

    Attributes:
        rows: encoded elements.
        exists: False for padding of a set; what stands there is not read.
        tokens: the tokens of the call that have elements, S of them; a token without any passes unchanged.
    """

    rows: Float[Tensor, "B S N D"]
    exists: Bool[Tensor, "B S N"]
    tokens: slice = field(default_factory=lambda: EVERY)

    def among(self, wanted: slice, time: int) -> "tuple[slice, Context]":
        """Where tokens with elements stand among the ``wanted`` ones of a call of ``time`` tokens, and the elements."""
        if wanted == EVERY:
            return self.tokens, self
        asked, mine = range(time)[wanted], range(time)[self.tokens]
        common = [token for token in asked if token in mine]
        own = progression([mine.index(token) for token in common], len(mine))
        there = progression([asked.index(token) for token in common], len(asked))
        return there, self if own == EVERY else Context(self.rows[:, own], self.exists[:, own], there)

    def sorted(self, order: Int[Tensor, "B T"]) -> "Context":
        """The same for tokens that are taken in another order in every stream."""
        batch, time = order.shape
        rows = self.rows.new_zeros(batch, time, *self.rows.shape[2:])
        exists = self.exists.new_zeros(batch, time, self.exists.shape[2])
        rows[:, self.tokens], exists[:, self.tokens] = self.rows, self.exists
        stream = torch.arange(batch, device=order.device)[:, None]
        return Context(rows[stream, order], exists[stream, order])

    def repeated(self, streams: int) -> "Context":
        """Every row for so many streams that read the same tokens."""
        if streams == 1:
            return self
        return Context(self.rows.repeat_interleave(streams, 0), self.exists.repeat_interleave(streams, 0), self.tokens)


def progression(places: Sequence[int], length: int) -> slice:
    """Evenly spaced places of ``length`` as a slice."""
    if len(places) == length:
        return EVERY
    if not places:
        return slice(0, 0)
    return slice(places[0], places[-1] + 1, places[1] - places[0] if len(places) > 1 else 1)
