"""Minimal gated cells, whose gates and candidates read the token alone. Axes: B batch, T tokens, D width, N numbers."""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn

from rltransformers.core.spec import Spec, Traits
from rltransformers.functional.call import Call, chosen
from rltransformers.functional.modules import wide
from rltransformers.functional.scan import scan
from rltransformers.mixers.interface import Dims, LayerState, Mixed, StateMixer


def positive_candidate(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """``x + 1/2`` from 0 on, ``sigmoid(x)`` below; always positive."""
    return torch.where(x < 0, x.sigmoid(), x + 0.5)


DIFFERENCES = (
    "an episode starts from 0; sums of the recurrence itself, not of logarithms; W_o at every expansion; `highway` is "
    "an addition: s_t W_o h_t + (1 - s_t) x_t, s_t = sigmoid(W_s x_t)"
)


@dataclass(frozen=True)
class Options:
    """Options of both cells.

    Attributes:
        expansion: numbers that the cell carries per number of the model's width.
        forget_bias: where the gates start: an untrained cell keeps sigmoid(forget_bias) of its numbers per token in
            min_gru; in min_lstm it is the bias of the forget gate.
        highway: whether a gate chooses between the cell's output and the layer's input.
    """

    expansion: Annotated[float, Ge(1), Le(16)] = 1.0
    forget_bias: Annotated[float, Ge(-20), Le(20)] = 0.0
    highway: bool = False


class MinGRU(StateMixer):
    """``h_t = (1 - z_t) h_(t-1) + z_t g(W_h x_t)``, ``z_t = sigmoid(W_z x_t)``; ``o_t = W_o h_t``.

    Source: Feng et al. 2024 (arXiv 2410.01201), sections 3.1 and B.2.1, g as there. With ``highway`` (Srivastava et al.
    2015, arXiv 1505.00387) the output is ``s_t W_o h_t + (1 - s_t) x_t``, ``s_t = sigmoid(W_s x_t)``.
    """

    no_decay = ("project.bias",)

    gates = 1
    forget_sign = -1.0  # of the first gate: z replaces what is carried, f of the LSTM keeps it

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        self.size = round(options.expansion * dims.width)
        self.project = nn.Linear(dims.width, (self.gates + 1) * self.size)
        self.out = nn.Linear(self.size, dims.width)
        self.highway = nn.Linear(dims.width, dims.width) if options.highway else None
        nn.init.constant_(self.project.bias[: self.size], self.forget_sign * options.forget_bias)

    def update_logits(self, gates: Float[Tensor, "B T G"]) -> Float[Tensor, "B T N"]:
        """``log(z / (1 - z))`` with z the share of the candidate."""
        return gates

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """The numbers that the cell carries."""
        return {"carry": (self.size,)}

    def forward(self, h: Float[Tensor, "B T D"], state: LayerState, call: Call) -> Mixed:
        """Tells the mean share of the candidates as "update"."""
        projected = self.project(h)
        projected = wide(projected)
        gates, candidate = projected.split([self.gates * self.size, self.size], -1)
        logits = self.update_logits(gates)
        update, keep = logits.sigmoid(), (-logits).sigmoid()
        call.tell("update", lambda: update)
        rows, carry = scan(keep, update * positive_candidate(candidate), state["carry"], call.tokens)
        mixed = self.out(chosen(rows, call.wanted).to(h.dtype))
        if self.highway is not None:
            inputs = chosen(h, call.wanted)
            mixed = torch.lerp(inputs, mixed.to(h.dtype), self.highway(inputs).sigmoid().to(h.dtype))
        return Mixed(mixed, {"carry": carry})


class MinLSTM(MinGRU):
    """``h_t = (f_t h_(t-1) + i_t g(W_h x_t)) / (f_t + i_t)``, ``f, i = sigmoid(W_f x_t), sigmoid(W_i x_t)``.

    Source: as of ``MinGRU``, sections 3.2 and B.2.2.
    """

    gates = 2
    forget_sign = 1.0

    def update_logits(self, gates: Float[Tensor, "B T G"]) -> Float[Tensor, "B T N"]:
        forget, accept = nn.functional.logsigmoid(gates).chunk(2, -1)  # i / (f + i) without a quotient of two zeros
        return accept - forget


MIN_GRU = Spec(
    id="N6a", name="min_gru", axis="mixer", paper="Feng et al. 2024, arXiv 2410.01201, section 3.1",
    summary="a GRU whose gate and candidate read the token alone, so that a segment is computed in parallel",
    build=MinGRU, options=Options,
    traits=Traits(family="VAL", horizon="episode", state="expansion D", causal_form=DIFFERENCES),
    formula="h_t = (1 - z_t) h_(t-1) + z_t g(W_h x_t), z_t = sigmoid(W_z x_t), g(u) = u + 1/2 if u >= 0 else "
    "sigmoid(u), o_t = W_o h_t",
)  # fmt: skip
MIN_LSTM = Spec(
    id="N6b", name="min_lstm", axis="mixer", paper="Feng et al. 2024, arXiv 2410.01201, section 3.2",
    summary="an LSTM whose gates and candidate read the token alone; its two gates add up to 1",
    build=MinLSTM, options=Options,
    traits=Traits(family="VAL", horizon="episode", state="expansion D", causal_form=DIFFERENCES),
    formula="h_t = (f_t h_(t-1) + i_t g(W_h x_t)) / (f_t + i_t), f_t, i_t = sigmoid(W_f x_t), sigmoid(W_i x_t), "
    "g(u) = u + 1/2 if u >= 0 else sigmoid(u), o_t = W_o h_t",
)  # fmt: skip
