"""Evolving attention: the logits of the layer below, convolved over queries and keys (Wang et al. 2020).

Axes: B batch, T tokens, H heads, L distances 0 .. window - 1, R = 2 + T rows.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.attention.roles import HandUp, Part, Stage, View
from rltransformers.core.ranges import UnitInterval
from rltransformers.core.spec import Feature, Refusal, Spec, Traits
from rltransformers.functional.call import Call, Tokens
from rltransformers.functional.taps import newest_rows, with_past
from rltransformers.mixers.interface import Dims

ROWS = 3
"""Queries that a convolution reads: t - 2, t - 1 and t; keys s - 1, s and s + 1."""


def convolved(
    rows: Float[Tensor, "B R H L"], kernel: Float[Tensor, "H H 3 3"], tokens: Tokens
) -> Float[Tensor, "B T H L"]:
    """``out[t, o, d] = sum_hij kernel[o, h, i, j] rows[2 + t - i, h, d - i - (j - 1)]``; rows of other episodes are 0.

    Query t - i at distance d - i - j has the key s + j, where the query t at distance d has s.
    """
    time, length = tokens.p.shape[1], rows.shape[-1]
    found = []
    for i in range(ROWS):
        own = rows[:, ROWS - 1 - i : ROWS - 1 - i + time].masked_fill((tokens.p < i)[..., None, None], 0.0)
        padded = F.pad(own, (ROWS, 1))
        for j in range(3):
            first = ROWS - i - (j - 1)
            found.append(kernel[:, :, i, j] @ padded[..., first : first + length])
    return torch.stack(found).sum(0)


@dataclass(frozen=True)
class Options:
    """Share of a layer's own logits."""

    alpha: UnitInterval = 0.5


class Predictive(Part):
    """``alpha own + (1 - alpha) conv(below)``; the lowest layer has its own logits alone."""

    hands = HandUp.DISTANCES

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        self.alpha, self.heads = options.alpha, dims.heads
        if dims.layer > 0:
            self.stages = Stage.LOGITS
            bound = (9 * dims.heads) ** -0.5
            self.kernel = nn.Parameter(torch.empty(dims.heads, dims.heads, ROWS, 3).uniform_(-bound, bound))

    def state_shapes(self, length: int) -> dict[str, tuple[int, ...]]:
        """Logits of the last two queries in the layer below."""
        return {"logits": (ROWS - 1, self.heads * length)} if self.stages else {}

    def carry(
        self, below: Tensor | None, state: dict[str, Tensor], call: Call
    ) -> tuple[Float[Tensor, "B T H L"] | None, dict[str, Tensor]]:
        if not self.stages:
            return None, {}
        assert below is not None  # a lower layer hands its rows on
        rows = with_past(state["logits"], below.flatten(2))
        after = {"logits": newest_rows(rows, state["logits"], call.tokens)}
        return convolved(rows.unflatten(-1, (self.heads, -1)), self.kernel, call.tokens), after

    def logits(self, logits: Tensor, view: View) -> Tensor:
        """Keys outside the window, such as sinks, have nothing below them."""
        assert view.below is not None
        added = F.pad(view.below.transpose(1, 2), (0, 1))
        columns = view.columns
        spread = columns.spread(added.index_select(-1, columns.listed.clamp(max=added.shape[-1] - 1)))
        return self.alpha * logits + (1 - self.alpha) * spread.to(logits.dtype)


SPEC = Spec(
    id="B3", name="predictive", axis="prior",
    paper="Wang et al. 2020, Predictive Attention Transformer, a submission to ICLR 2021",
    summary="Mixes the logits with those of the layer below after a convolution over queries, keys and heads.",
    build=Predictive, options=Options, example={"prior": "predictive", "layers": 3},
    traits=Traits(
        causality="X",
        family="EXPL",
        horizon="window + 2",
        state="2 H window (all layers but the first)",
        causal_form="the kernel covers the queries t - 2 to t, there t - 1 to t + 1; invisible keys count 0; only"
                    " the logits of the layer below are convolved, where the later version (arXiv 2102.12895) "
                    "convolves their mixture with the layer's own, applies a ReLU and mixes again",
    ),
    offers=(Feature.CARRY, Feature.MIXED_LAYERS), needs=(Feature.LOGITS,),
    refuses=(
        Refusal(Feature.MIXED_KEYS, "the logits of the previous layer must be about the same keys"),
        Refusal(Feature.HALTING, "a token that halts hands nothing on to the layers above"),
        Refusal(Feature.CHOICE, "keys that are chosen for every query have no neighbors"),
        Refusal(Feature.NO_MEMORY, "it keeps logits of its own, so that memory 0 does not make the layers memoryless"),
    ),
    formula="l^n = alpha own^n + (1 - alpha) Conv3x3(l^(n-1) where visible, else 0)",
)  # fmt: skip
