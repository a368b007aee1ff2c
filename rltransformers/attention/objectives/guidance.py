"""Some heads are taught where to look (Deshpande and Narasimhan 2020).

Axes: B batch, H heads, T tokens, S keys.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rltransformers.attention.reach import Columns, beside
from rltransformers.attention.roles import Judged, Objective
from rltransformers.core.ranges import Fraction
from rltransformers.core.spec import Feature, Spec, Traits
from rltransformers.functional.call import Tokens
from rltransformers.mixers.interface import Dims

Target = Literal["previous", "first", "self"]


def squared_distance(
    weights: Float[Tensor, "B H T S"], distance: Int[Tensor, "b h T S"], visible: Tensor, back: Int[Tensor, "B T"]
) -> Judged:
    """|a - P|^2 of every row, where P is 1 at the key ``back`` tokens away; rows that do not see it do not count."""
    there = ((distance == back[:, None, :, None]) & visible).expand_as(weights)
    count = there.sum(-1)
    goal = there.to(weights.dtype) / count.clamp(min=1)[..., None]
    return Judged((weights - goal).square().sum(-1), count > 0)


@dataclass(frozen=True)
class Options:
    """Options of guided heads.

    Attributes:
        target: where guided heads look. "first" counts as long as the window holds the first token; one that a pattern
            keeps behind its window does not count.
        share: of the heads that is guided, at least one.
    """

    target: Target = "previous"
    share: Fraction = 0.5


class Guidance(Objective):
    """The first ``heads`` heads look at the token before, at the first one of the episode, or at themselves."""

    name = "pattern"
    reads_weights = True

    def __init__(self, dims: Dims, options: Options) -> None:
        self.target, self.heads = options.target, max(1, round(options.share * dims.heads))

    def of_weights(self, weights: Float[Tensor, "B H T S"], columns: Columns, tokens: Tokens) -> Judged:
        p, heads = tokens.p, self.heads
        back = p if self.target == "first" else torch.full_like(p, 1 if self.target == "previous" else 0)
        distance, visible = beside(columns.distances()), columns.visible
        if distance.shape[1] > 1:
            distance = distance[:, :heads]
        if visible.shape[1] > 1:
            visible = visible[:, :heads]
        return squared_distance(weights[:, :heads], distance, visible, back)


SPEC = Spec(
    id="X5", name="pattern", axis="losses", paper="Deshpande and Narasimhan 2020, arXiv 2010.02399, section 3",
    summary="Squared distance of the weights of some heads from a fixed pattern, mean over rows that see its target, "
    "summed over layers.",
    build=Guidance, options=Options, example={"losses": {"pattern": {"weight": 1e-2, "target": "previous"}}},
    traits=Traits(causality="N/A"),
    needs=(Feature.LOGITS,),
    formula="mean_t sum_s (a_ts - P_ts)^2, P_ts = 1 at s = t - 1, at the first token of the episode, or at s = t",
)  # fmt: skip
