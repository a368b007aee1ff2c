"""Heads are pushed apart: in their values, their outputs, or the places they look at (Li et al. 2018).

Axes: B batch, H heads, T tokens, S keys, V value width.
"""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from rltransformers.attention.reach import Columns, beside
from rltransformers.attention.roles import Objective
from rltransformers.core.spec import Feature, Spec, Traits
from rltransformers.functional.call import Tokens
from rltransformers.mixers.interface import Dims

On = Literal["subspace", "output", "position"]


def agreement(vectors: Float[Tensor, "B H T V"]) -> Float[Tensor, "B T"]:
    """Mean cosine of all pairs of heads, a head and itself included: 1 / H^2 sum_ij cos(v_i, v_j)."""
    return overlap(F.normalize(vectors, dim=-1))


def overlap(weights: Float[Tensor, "B H T S"]) -> Float[Tensor, "B T"]:
    """1 / H^2 sum_ij sum_s a_i,s a_j,s."""
    return weights.sum(1).square().sum(-1) / weights.shape[1] ** 2


def summed_by_distance(weights: Float[Tensor, "B H T S"], columns: Columns) -> Float[Tensor, "B H T L"]:
    """Weights by listed distance, where a column is another key for every head; by column elsewhere."""
    if all(index is None or index.dim() < 4 or index.shape[1] == 1 for index in columns.index):
        return weights
    distance = beside(columns.distances()).expand_as(weights)
    return weights.new_zeros(*weights.shape[:3], len(columns.listed)).scatter_add(-1, distance, weights)


@dataclass(frozen=True)
class Options:
    """Rows of heads that should differ: projected values, outputs of heads, or the places they look at."""

    on: On = "output"


class Disagreement(Objective):
    """The negative of the paper's D, whose maximum is its minimum; heads that share their values count once."""

    name = "disagreement"

    def __init__(self, dims: Dims, options: Options) -> None:
        self.on = options.on
        self.reads_weights = options.on == "position"

    def of_values(self, values: Float[Tensor, "B G T V"]) -> Tensor | None:
        """Subspaces: the projected values of the tokens themselves."""
        return agreement(values) if self.on == "subspace" else None

    def of_outputs(self, outputs: Float[Tensor, "B H T V"]) -> Tensor | None:
        return agreement(outputs) if self.on == "output" else None

    def of_weights(self, weights: Float[Tensor, "B H T S"], columns: Columns, tokens: Tokens) -> Tensor | None:
        return overlap(summed_by_distance(weights, columns)) if self.on == "position" else None


SPEC = Spec(
    id="X4", name="disagreement", axis="losses", paper="Li et al. 2018, arXiv 1810.10183, section 3",
    summary="How alike heads are in values, outputs or attention weights; mean over tokens, summed over layers.",
    build=Disagreement, options=Options, example={"losses": {"disagreement": {"weight": 1e-2, "on": "position"}}},
    traits=Traits(causality="N/A"),
    needs=(Feature.LOGITS,),
    formula="1 / H^2 sum_ij cos(v_i, v_j), 1 / H^2 sum_ij cos(o_i, o_j), or 1 / H^2 sum_ij sum_s a_i,ts a_j,ts",
)  # fmt: skip
