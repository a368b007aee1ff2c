"""Forgetting attention: every token lets all rows before it lose a share, which it decides itself (Lin et al. 2025).

Axes: B batch, T tokens, H heads, D model width, M rows of the window behind a token, L distances 0 .. M + 1; those
beyond the window count as M + 1.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.attention.roles import Part
from rltransformers.core.spec import Feature, Spec, Traits
from rltransformers.functional.call import Call
from rltransformers.functional.modules import wide
from rltransformers.functional.windows import FEW_TOKENS
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Options:
    """Biases of the forget gates at the start: with 0 a row loses half at every token, with 5 one part in 150."""

    bias: Annotated[float, Ge(-20), Le(20)] = 5.0


def lost_by_distance(log_f: Float[Tensor, "B T H"], before: Float[Tensor, "B H M"]) -> Float[Tensor, "B T H L"]:
    """``sum_(t-d < j <= t) log f_j`` for every token and distance d, without differences of long sums.

    Args:
        before: the same sums of the last token before the call, distances 1 .. M.
    """
    past = F.pad(before, (1, 0))
    time, length = log_f.shape[1], past.shape[-1] + 1
    if time <= FEW_TOKENS:
        rows = []
        for own in log_f.unbind(1):
            rows.append(F.pad(own[..., None] + past, (1, 0)))
            past = rows[-1][..., :-1]
        return torch.stack(rows, 1)
    newest = log_f[..., None]  # sums over as many of the newest tokens as there are distances in ``lost``
    lost = torch.zeros_like(newest)
    while (count := lost.shape[-1]) < length:
        lost = torch.cat([lost, newest + earlier(lost, count)], -1)
        newest = newest + earlier(newest, count)
    row = torch.arange(length, device=past.device) - torch.arange(1, time + 1, device=past.device)[:, None]
    older = past[..., row.clamp(min=0)].masked_fill(row < 0, 0.0)
    return lost[..., :length] + older.transpose(1, 2)


def earlier(rows: Float[Tensor, "B T H N"], tokens: int) -> Float[Tensor, "B T H N"]:
    """Rows of so many tokens before every token, zeros before the call."""
    return F.pad(rows, (0, 0, 0, 0, tokens, 0))[:, : rows.shape[1]]


class Forget(Part):
    """``sum_(s < j <= t) log f_j`` with ``f_j = sigmoid(w h_j + b)`` per head."""

    no_decay = ("gate.bias",)

    scores_tokens = True

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        self.heads = dims.heads
        self.gate = nn.Linear(dims.width, dims.heads)
        nn.init.constant_(self.gate.bias, options.bias)

    def state_shapes(self, length: int) -> dict[str, tuple[int, ...]]:
        """What every row of the window has lost."""
        return {"lost": (self.heads, length - 1)} if length > 1 else {}

    def of_tokens(
        self, h: Float[Tensor, "B T D"], state: dict[str, Tensor], call: Call
    ) -> tuple[Float[Tensor, "B T H L"], dict[str, Tensor]]:
        weight, bias = self.gate.weight, self.gate.bias
        with torch.autocast(h.device.type, enabled=False):
            opened = F.linear(h.to(weight.dtype), weight, bias)
            log_f = F.logsigmoid(wide(opened))
        if "lost" not in state:  # a token that sees itself alone
            return lost_by_distance(log_f, log_f.new_zeros(len(h), self.heads, 0)), {}
        before, tokens = state["lost"], call.tokens
        lost = lost_by_distance(log_f, before.to(log_f.dtype))
        # A row in front of the episode stands for no token: it has lost nothing, whatever came there.
        absent = torch.arange(lost.shape[-1], device=h.device) > tokens.p[..., None]
        lost = lost.masked_fill(absent[:, :, None], 0.0)
        return lost, {"lost": tokens.last(lost[..., 1:-1], before).to(before.dtype)}


SPEC = Spec(
    id="N20", name="forget", axis="prior", paper="Lin et al. 2025, arXiv 2503.02130, section 3",
    summary="Forget gate: every token lowers the scores of all earlier tokens, by a learned amount per head.",
    build=Forget, options=Options,
    traits=Traits(
        family="EXPL",
        state="H window",
        causal_form="biases start at 5, in the authors' code at 0; rows outside the window (first tokens, "
                    "compressed rows) are lowered as the oldest row of the window, mixtures of rows as the row at"
                    " their position, and keys of a store not at all",
    ),
    needs=(Feature.LOGITS,),
    formula="l_ts + sum_(s < j <= t) log f_j, f_j = sigmoid(w h_j + b)",
)  # fmt: skip
