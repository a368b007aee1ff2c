"""Hard-coded Gaussian attention: every head looks at a fixed place nearby (You et al. 2020).

Axes: H heads, L distances.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Float, Int
from torch import Tensor

from rltransformers.attention.layer import Attention
from rltransformers.attention.plan import Plan
from rltransformers.attention.scores.interface import EXPLICIT, ValuesOnly, check_value_heads
from rltransformers.core.spec import Feature, Spec, Traits
from rltransformers.functional.modules import wide_type
from rltransformers.mixers.interface import Dims


class HardGaussian(ValuesOnly):
    """``-(d - place)^2 / (2 deviation^2)``; heads look at themselves and at the token before in turn."""

    scores_distances = True
    places: Tensor

    def __init__(self, dims: Dims, deviation: float) -> None:
        super().__init__(dims)
        self.deviation = deviation
        self.register_buffer("places", torch.tensor([head % 2 for head in range(dims.heads)]), persistent=False)

    def of_distances(self, distance: Int[Tensor, " L"], like: Tensor) -> Float[Tensor, "L H"]:
        """Logarithms of the densities; float32 at least."""
        away = (distance[:, None] - self.places).to(wide_type(like))
        return -(away / self.deviation).square() / 2


@dataclass(frozen=True)
class Options:
    """Standard deviation in tokens; keys more than four of them beyond the place of a head are not kept."""

    deviation: Annotated[float, Ge(1e-3), Le(1e6)] = 1.0


def build(dims: Dims, plan: Plan, options: Options) -> Attention:
    """Build attention whose pattern reaches no further than the densities."""
    check_value_heads("hard_gaussian", dims)
    reach = math.ceil(4 * options.deviation) + 1
    steps = -(-reach // dims.tokens_per_step) + 1
    heads = tuple(each.within(steps) for each in plan.pattern.heads)
    return Attention(
        dims, replace(plan, score=HardGaussian(dims, options.deviation), pattern=replace(plan.pattern, heads=heads))
    )


SPEC = Spec(
    id="B8", name="hard_gaussian", axis="mixer", paper="You et al. 2020, arXiv 2005.00742, section 3",
    summary="Fixed weights: a Gaussian around the token itself or the one before, head by head; no queries, no keys.",
    build=build, options=Options,
    traits=Traits(
        family="VAL",
        horizon="ceil(4 deviation) + 1",
        state="horizon D (training), horizon heads Dv more (acting)",
        causal_form="weights are normalized over the tokens in sight; farther keys than four deviations are left out",
    ),
    offers=(*EXPLICIT, Feature.TIES),
    formula="o_t = sum_s a_ts v_s with a_ts ~ exp(-(d - place_h)^2 / (2 deviation^2)), place_h = 0 or 1",
)  # fmt: skip
