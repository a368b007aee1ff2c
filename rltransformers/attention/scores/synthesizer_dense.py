"""Dense Synthesizer: every token writes the logits of its distances itself, without a look at keys (Tay et al. 2021).

Axes: B batch, H heads, T tokens, N distances that have a logit of their own, L listed distances, D model width, K head
width, M numbers that a token writes for one head: N, or the two factors.
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rltransformers.attention.layer import Attention
from rltransformers.attention.plan import Plan
from rltransformers.attention.roles import Heads, Score
from rltransformers.attention.scores.interface import EXPLICIT, ValuesOnly, check_value_heads
from rltransformers.core.spec import Size, Spec, Traits
from rltransformers.mixers.interface import Dims


def outer(numbers: Float[Tensor, "*n M"], first: int, count: int) -> Float[Tensor, "*n N"]:
    """``A[n // b] B[n % b]`` for n < count, where A are the ``first`` numbers and B the other b."""
    a, b = numbers[..., :first], numbers[..., first:]
    return (a[..., :, None] * b[..., None, :]).flatten(-2)[..., :count]


class Writer(nn.Module):
    """``W2 ReLU(W1 h + b1) + b2`` for all heads; ``factorized`` logits are products of sqrt(N) numbers with others."""

    def __init__(self, dims: Dims, distances: int, hidden: int, factorized: bool) -> None:
        super().__init__()
        self.heads, self.distances = dims.heads, distances
        self.first = math.isqrt(distances - 1) + 1 if factorized else 0
        self.numbers = self.first + -(-distances // self.first) if factorized else distances
        self.into = nn.Linear(dims.width, hidden)
        self.out = nn.Linear(hidden, dims.heads * self.numbers)

    def forward(self, h: Float[Tensor, "B T D"]) -> Float[Tensor, "B T HM"]:
        found: Tensor = self.out(self.into(h).relu())
        return found

    def logits(self, written: Float[Tensor, "B T HM"]) -> Float[Tensor, "B H T N"]:
        numbers = written.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return outer(numbers, self.first, self.distances) if self.first else numbers


class DenseSynthesizer(ValuesOnly):
    """Logits by distance that a query writes."""

    def __init__(self, dims: Dims, writer: Writer) -> None:
        super().__init__(dims)
        self.writer = writer
        self.query_width = dims.heads * writer.numbers

    def rows(self, made: Tensor, h: Float[Tensor, "B T D"]) -> tuple[Tensor, Tensor]:
        return self.writer(h), made

    def split_queries(self, query: Float[Tensor, "B T HM"]) -> Float[Tensor, "B H T N"]:
        return self.writer.logits(query)

    def by_distance(self, query: Float[Tensor, "B H T N"], distance: Int[Tensor, " L"]) -> Float[Tensor, "B H T L"]:
        """Farther distances than N share the last logit."""
        return query.index_select(-1, distance.clamp(max=query.shape[-1] - 1))


class Mixture(Score):
    """``alpha_1 written + alpha_2 q k / sqrt(Dh)``, where the alphas are positive, learn and sum to 1."""

    plain = False

    def __init__(self, dims: Dims, writer: Writer) -> None:
        super().__init__(dims)
        self.writer = writer
        self.query_width = self.own + dims.heads * writer.numbers
        self.shares = nn.Parameter(torch.zeros(2))

    def rows(self, made: Tensor, h: Float[Tensor, "B T D"]) -> tuple[Tensor, Tensor]:
        query, keys = super().rows(made, h)
        return torch.cat([query, self.writer(h)], -1), keys

    def split_queries(self, query: Float[Tensor, "B T Q"]) -> Float[Tensor, "B H T X"]:
        own, written = query[..., : self.own], query[..., self.own :]
        heads = own.unflatten(-1, (self.dims.heads, -1)).transpose(1, 2)
        return torch.cat([heads, self.writer.logits(written)], -1)

    def content(self, query: Float[Tensor, "B H T X"], group: Heads) -> Float[Tensor, "B H T N"]:
        _, share = self.shares.softmax(0).unbind()
        return super().content(query[..., : self.dims.head_dim], group) * share

    def by_distance(self, query: Float[Tensor, "B H T X"], distance: Int[Tensor, " L"]) -> Float[Tensor, "B H T L"]:
        """The share of what is written; farther distances than N share the last logit."""
        written, (share, _) = query[..., self.dims.head_dim :], self.shares.softmax(0).unbind()
        return written.index_select(-1, distance.clamp(max=written.shape[-1] - 1)) * share


@dataclass(frozen=True)
class Options:
    """Options of the dense Synthesizer.

    Attributes:
        distances: largest distance N in tokens; default: all that the memory lets a token see.
        hidden: units between a token and its logits; None takes D.
        factorized: whether a token writes two factors of about sqrt(N) numbers in place of N.
        mixture: whether scaled dot products are mixed in.
    """

    distances: Size | None = None
    hidden: Size | None = None
    factorized: bool = False
    mixture: bool = False


def build(dims: Dims, plan: Plan, options: Options) -> Attention:
    """Build the network that writes logits, alone or mixed with scaled dot products."""
    check_value_heads("synthesizer_dense", dims)
    distances = options.distances or dims.tokens_in_view
    writer = Writer(dims, distances, options.hidden or dims.width, options.factorized)
    score = Mixture(dims, writer) if options.mixture else DenseSynthesizer(dims, writer)
    return Attention(dims, replace(plan, score=score))


SPEC = Spec(
    id="B9", name="synthesizer_dense", axis="mixer",
    paper="Tay et al. 2021, arXiv 2005.00743, sections 3.1, 3.3 and 3.5",
    summary="A small network predicts the attention logits of a token by distance; keys are not compared.",
    build=build, options=Options,
    traits=Traits(
        causality="C*",
        family="VAL",
        state="memory D (training), memory heads Dv more (acting)",
        causal_form="a logit belongs to a distance, there to a place in a sequence of fixed length; heads share the "
        "hidden units; factors are multiplied in all pairs, there both are repeated up to the length",
    ),
    offers=EXPLICIT,
    formula="o_t = sum_s softmax_s(w_t[d]) v_s, w_t = W2 ReLU(W1 h_t + b1) + b2; A[d // b] B[d % b] where factorized",
)  # fmt: skip
