"""Relative labels for keys outside the window: ETC tells tokens from global tokens by vectors of their relation.

Axes: B batch, H heads, T tokens, L distances, K head width.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rltransformers.core.spec import Feature, SizeOrZero, Spec, Traits
from rltransformers.mixers.interface import Dims
from rltransformers.positions.interface import Acts, Position


@dataclass(frozen=True)
class Options:
    """Distance from which all share one vector."""

    max_distance: SizeOrZero = 16


class GlobalLabels(Position):
    """q . (a[min(d, K)] + g) / sqrt(Dh), g for keys that stand outside the window only; vectors shared by heads."""

    acts = Acts.SCORE | Acts.LABEL

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        self.max_distance = options.max_distance
        self.distances = nn.Parameter(torch.randn(self.max_distance + 1, dims.head_dim) * 0.02)
        self.label = nn.Parameter(torch.randn(dims.head_dim) * 0.02)

    def of_distances(self, distance: Int[Tensor, " L"], like: Tensor) -> Float[Tensor, "L K"]:
        return self.distances[distance.clamp(max=self.max_distance)]

    def label_scores(self, q: Float[Tensor, "B H T K"]) -> Float[Tensor, "B H T 1"]:
        """The relation of a token to a global one."""
        return (q @ self.label.to(q.dtype) * q.shape[-1] ** -0.5)[..., None]


SPEC = Spec(
    id="P15", name="global_labels", axis="position", paper="Ainslie et al. 2020, arXiv 2004.08483, section 3.2",
    summary="As shaw, with one more vector for keys outside the window: first tokens, block summaries, slots.",
    build=GlobalLabels, options=Options,
    example={
        "position": {"name": "global_labels", "max_distance": 2},
        "pattern": {"name": "longformer", "window": 3, "sinks": 2},
    },
    traits=Traits(
        causal_form="only relations of tokens to tokens and to globals; those between globals belong to the "
                    "pattern etc; without keys outside the window it scores distances alone",
    ),
    acts_at="inside attention", needs=(Feature.SCORES, Feature.PRODUCTS),
    formula="l_ts = q_t (k_s + a[min(d, K)] + 1[s is global] g) / sqrt(Dh)",
)  # fmt: skip
