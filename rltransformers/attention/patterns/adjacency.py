"""A graph: every token sees the neighbors that a table gives it (Velickovic et al. 2018)."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Bool, Int
from torch import Tensor

from rltransformers.attention.reach import Constant, Reach, Rule, check_memory
from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Feature, SizeOrZero, Spec, Traits
from rltransformers.mixers.interface import Dims

Place = Annotated[int, Ge(0), Le(10_000)]
"""A step of the episode; the table of neighbors has a row for every step up to the last one with an edge."""


@dataclass(frozen=True)
class Neighbors(Rule):
    """The query's own step, those ``offsets`` steps back, and those that the table lists for it.

    Attributes:
        table: for the n-th step of an episode the steps that it sees, filled up with its own; later steps see none.
    """

    offsets: tuple[int, ...]
    table: tuple[tuple[int, ...], ...]
    tokens_per_step: int
    of_steps: Constant = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "of_steps", Constant(self.table))

    def allowed(self, i: Int[Tensor, "B 1 T 1"], distance: Int[Tensor, "b h T N"]) -> Bool[Tensor, "c h T N"]:
        step = i // self.tokens_per_step
        key = (i - distance) // self.tokens_per_step
        back = step - key
        seen = functools.reduce(torch.logical_or, (back == offset for offset in self.offsets), back == 0)
        if not self.table:
            return seen
        table, last = self.of_steps.values, len(self.table) - 1
        listed = torch.where((step > last)[..., None], step[..., None], table[step.clamp(max=last)])
        for neighbor in listed.unbind(-1):
            seen = seen | (key == neighbor)
        return seen


@dataclass(frozen=True)
class Options:
    """The edges of the graph.

    Attributes:
        offsets: how many steps back the neighbors of every token lie.
        edges: pairs of steps of the episode, counted from 0; the first of a pair sees the second one.
    """

    offsets: Sequence[SizeOrZero] = ()
    edges: Sequence[tuple[Place, Place]] = ()


def build(dims: Dims, options: Options) -> Reach:
    """Neighbors, and the token's own step."""
    for query, key in options.edges:
        if key > query:
            raise ConfigError(
                f"pattern 'adjacency' has an edge from step {query} to step {key}, which comes later; write "
                f"[{key}, {query}]"
            )
    back = max([0, *options.offsets, *(query - key for query, key in options.edges)])
    check_memory("pattern 'adjacency'", back, dims.memory)
    rule = Neighbors(tuple(options.offsets), table_of(options.edges), dims.tokens_per_step)
    return Reach(back + 1, tokens_per_step=dims.tokens_per_step, rule=rule)


def table_of(edges: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """For every step up to the last one that has an edge the steps it sees, as many for each of them."""
    count = max((query for query, _ in edges), default=-1) + 1
    seen = [[step] for step in range(count)]
    for query, key in edges:
        seen[query].append(key)
    most = max(map(len, seen), default=0)
    return tuple(tuple(keys + keys[:1] * (most - len(keys))) for keys in seen)


SPEC = Spec(
    id="A17", name="adjacency", axis="pattern",
    paper="Velickovic et al. 2018, arXiv 1710.10903; Kipf & Welling 2017, arXiv 1609.02907",
    summary="Every token sees its neighbors in a graph: steps at given `offsets`, and `edges` between steps.",
    build=build, options=Options,
    example={"pattern": {"name": "adjacency", "offsets": [2, 5], "edges": [[3, 0], [4, 1], [4, 3]]}},
    traits=Traits(
        causality="C*",
        horizon="longest edge",
        state="(longest edge) D",
        causal_form="edges lead to earlier steps only, counted from the start of the episode, or as offsets; every "
        "token sees its own step",
    ),
    offers=(Feature.REACH,), needs=(Feature.PATTERNS,),
    formula="softmax over s <= t with s = t, t - s in offsets, or (t, s) in edges",
)  # fmt: skip
