"""Modern Hopfield network: a query moves among the keys before it reads (Ramsauer et al. 2020).

Axes: B batch, H heads, T tokens, N keys of a group, S keys of all groups, K head width.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn

from rltransformers.attention import softmax
from rltransformers.attention.layer import Attention
from rltransformers.attention.plan import Plan
from rltransformers.attention.roles import Heads, Score
from rltransformers.core.spec import Spec, Traits
from rltransformers.mixers.interface import Dims


class Hopfield(Score):
    """``xi <- sum_s softmax_s(beta xi k_s) k_s``, ``updates`` times from the query on; then values by the same softmax.

    What is added to the logits by distance is added in every update. Keys are the stored patterns and the queries the
    state patterns of Ramsauer et al. 2020, equations 3 and 10; ``meets`` makes both.
    """

    plain = False

    def __init__(self, dims: Dims, meets: Score, updates: int, beta: float | None, learned: bool) -> None:
        super().__init__(dims)
        self.meets, self.updates, self.beta = meets, updates, beta
        self.own, self.query_width, self.key_width = meets.own, meets.query_width, meets.key_width
        self.factor = nn.Parameter(torch.zeros(dims.heads, 1, 1)) if learned else None

    def rows(self, made: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return self.meets.rows(made, h)

    def key_rows(self, made: Tensor) -> Tensor:
        return self.meets.key_rows(made)

    def split_queries(self, query: Tensor) -> Tensor:
        return self.meets.split_queries(query)

    def split(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self.meets.split(rows)

    def settled(
        self, query: Tensor, groups: list[Heads], logits: Callable[[Tensor], Tensor], visible: Tensor
    ) -> Tensor:
        """State patterns after the updates; other keys than the visible ones have no part in them."""
        for _ in range(self.updates):
            own = logits(query)
            shares = own.masked_fill(~visible, torch.finfo(own.dtype).min).softmax(-1)
            parts = shares.split_with_sizes([group.k.shape[-2] for group in groups], -1)
            means = [
                (part[..., None] * group.k).sum(-2) if group.per_token else part @ group.k
                for part, group in zip(parts, groups, strict=True)
            ]
            query = sum(means[1:], means[0])
        return query

    def content(self, query: Float[Tensor, "B H T K"], group: Heads) -> Float[Tensor, "B H T N"]:
        if self.factor is not None:
            query = query * self.factor.exp().to(query.dtype)
        if self.beta is not None:
            query = query * (self.beta * query.shape[-1] ** 0.5)
        return super().content(query, group)


@dataclass(frozen=True)
class Options:
    """Options of Hopfield retrieval.

    Attributes:
        updates: of the state pattern before the values are read; 0 is attention.
        beta: inverse temperature; None takes ``1 / sqrt(Dh)``.
        learned: every head learns a factor of beta, which starts at 1.
    """

    updates: Annotated[int, Ge(0), Le(3)] = 1
    beta: Annotated[float, Ge(1e-6), Le(1e3)] | None = None
    learned: bool = False


def build(dims: Dims, plan: Plan, options: Options) -> Attention:
    """Build the updates in front of the score that the plan has."""
    score = Hopfield(dims, plan.score, options.updates, options.beta, options.learned)
    return softmax.build(dims, replace(plan, score=score))


SPEC = Spec(
    id="S1", name="hopfield", axis="mixer", paper="Ramsauer et al. 2020, arXiv 2008.02217, equations 3 and 10",
    summary="Hopfield layer: a query is replaced by its attention-weighted mean of keys, up to three times, "
            "before it reads values.",
    build=build, options=Options, example={"mixer": {"name": "hopfield", "updates": 2}},
    traits=Traits(
        causality="C*",
        family="EXPL",
        state="memory D (training), memory kv_heads (Dh + Dv) more (acting)",
        causal_form="the number of updates is fixed, there they stop at a threshold; no extra norms of stored and"
                    " state patterns",
    ),
    offers=softmax.SPEC.offers,
    formula="xi = q_t; updates times: xi <- sum_s softmax_s(beta xi k_s) k_s; o_t = sum_s softmax_s(beta xi k_s) v_s",
)  # fmt: skip
