"""Options of softmax attention that keep its logits in bounds: normalized queries and keys, a cap, a sink.

Axes: B batch, H heads, T tokens, N key rows, S keys of all groups, K head width, Q and E numbers of a query and of a
key row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.attention.roles import Heads, Score, Stage, View

EPS = 1e-5


@dataclass(frozen=True)
class Options:
    """Options of softmax attention, all of them off.

    Attributes:
        qk_norm: RMS normalization of every head's queries and keys, with gains that the heads share.
        softcap: c of c tanh(l / c), which takes the place of the logits l of content, positions and priors; None: none.
        sink_logit: every head learns a logit that counts in the sum of its softmax and reads nothing.
    """

    qk_norm: bool = False
    softcap: Annotated[float, Ge(0.1), Le(1e6)] | None = None
    sink_logit: bool = False


class Extras(Score):
    """Any score of products with these options; ``meets`` makes queries, keys and their content."""

    def __init__(self, meets: Score, options: Options) -> None:
        super().__init__(meets.dims)
        self.meets, self.plain, self.cap = meets, meets.plain, options.softcap
        self.own, self.query_width, self.key_width = meets.own, meets.query_width, meets.key_width
        self.stages = Stage.NONE if self.cap is None else Stage.LOGITS
        width = meets.dims.head_dim
        self.query_gain = nn.Parameter(torch.ones(width)) if options.qk_norm else None
        self.key_gain = nn.Parameter(torch.ones(width)) if options.qk_norm else None
        self.sink = nn.Parameter(torch.zeros(meets.dims.heads)) if options.sink_logit else None

    def rows(self, made: Tensor, h: Tensor) -> tuple[Float[Tensor, "B T Q"], Float[Tensor, "B T E"]]:
        query, keys = self.meets.rows(made, h)
        return self.normal(query, self.query_gain), self.normal_keys(keys)

    def key_rows(self, made: Tensor) -> Float[Tensor, "B *n E"]:
        return self.normal_keys(self.meets.key_rows(made))

    def normal_keys(self, rows: Float[Tensor, "B *n E"]) -> Float[Tensor, "B *n E"]:
        """Rows with normalized keys: what a memory keeps."""
        return rows if self.key_gain is None else self.with_keys(rows, lambda k: self.normal(k, self.key_gain))

    def normal(self, rows: Float[Tensor, "B *n X"], gain: Float[Tensor, " K"] | None) -> Float[Tensor, "B *n X"]:
        """``x / sqrt(mean x^2 + eps) * gain`` head by head."""
        if gain is None:
            return rows
        heads = rows.unflatten(-1, (-1, len(gain)))
        return (F.rms_norm(heads, gain.shape, eps=EPS) * gain).flatten(-2).to(rows.dtype)

    def split_queries(self, query: Tensor) -> Float[Tensor, "B H T K"]:
        return self.meets.split_queries(query)

    def split(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self.meets.split(rows)

    def settled(
        self, query: Tensor, groups: list[Heads], logits: Callable[[Tensor], Tensor], visible: Tensor
    ) -> Tensor:
        return self.meets.settled(query, groups, logits, visible)

    def content(self, query: Tensor, group: Heads) -> Float[Tensor, "B H T N"]:
        return self.meets.content(query, group)

    def by_distance(self, query: Tensor, distance: Tensor) -> Tensor | None:
        return self.meets.by_distance(query, distance)

    def logits(self, logits: Float[Tensor, "B H T S"], view: View) -> Float[Tensor, "B H T S"]:
        """In (-c, c)."""
        assert self.cap is not None
        return self.cap * torch.tanh(logits / self.cap)
