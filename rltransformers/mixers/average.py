"""Average attention: the mean of the episode so far, mixed in by two gates. Axes: B batch, T tokens, D width."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rltransformers.core.spec import Size, Spec, Traits
from rltransformers.functional.call import Call, Tokens, chosen
from rltransformers.functional.prefixes import episode_totals
from rltransformers.mixers.interface import Dims, LayerState, Mixed, StateMixer


def episode_mean(
    values: Float[Tensor, "B T D"], before: Float[Tensor, "B D"], tokens: Tokens
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B D"]]:
    """Mean of ``values`` over the episode up to each token, and the sum at the last valid token; float32 at least.

    Sums of masked products, not differences of running sums: an earlier episode leaves no rounding and no gradient.
    """
    total, after = episode_totals(values[:, None], before[:, None], tokens)
    return total[:, 0] / (tokens.p + 1)[..., None], after[:, 0]


@dataclass(frozen=True)
class Options:
    """Units of the feed-forward network behind the mean; None takes 4 D, as the paper does."""

    hidden: Size | None = None


class AverageAttention(StateMixer):
    """``g = FFN(mean(y))``, ``[i, f] = sigmoid(W [y; g])``, ``i * y + f * g`` (arXiv 1805.00631, eq. 1-2)."""

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        self.width = dims.width
        hidden = 4 * dims.width if options.hidden is None else options.hidden
        self.feed_forward = nn.Sequential(nn.Linear(dims.width, hidden), nn.ReLU(), nn.Linear(hidden, dims.width))
        self.gates = nn.Linear(2 * dims.width, 2 * dims.width)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"sum": (self.width,)}

    def forward(self, h: Float[Tensor, "B T D"], state: LayerState, call: Call) -> Mixed:
        """Tells the mean weight of the past as "past_gate"."""
        mean, total = episode_mean(h, state["sum"], call.tokens)
        past = self.feed_forward(mean.to(h.dtype))
        input_gate, past_gate = self.gates(torch.cat([h, past], -1)).sigmoid().chunk(2, -1)
        call.tell("past_gate", lambda: past_gate)
        return Mixed(chosen(input_gate * h + past_gate * past, call.wanted), {"sum": total})


SPEC = Spec(
    id="B7", name="average", axis="mixer", paper="Zhang, Xiong & Su 2018, arXiv 1805.00631",
    summary="a gated mean over the episode so far: no queries, no keys, one sum as memory",
    build=AverageAttention, options=Options,
    traits=Traits(family="VAL", horizon="episode", state="D"),
    formula="g = FFN(mean_(s <= t) y_s), [i, f] = sigmoid(W [y_t; g]), o_t = i y_t + f g",
)  # fmt: skip
