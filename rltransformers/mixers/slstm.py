"""The scalar memory of the xLSTM: an LSTM with exponential gates and a normalizer, whose heads do not see each other.

Axes: B batch, t tokens, D width, U units, H heads, X units of a head.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Spec, Traits
from rltransformers.functional.modules import evenly
from rltransformers.mixers.cell import Cell, CellOptions
from rltransformers.mixers.interface import Dims

FIRST_FORGET, LAST_FORGET = 3.0, 6.0
"""First biases of forget gates, over the units of a head."""


class ScalarLSTM(Cell):
    """``c = f c + i z``, ``n = f n + i``, ``h = o c / n`` with ``i = exp(...)``, ``f = sigmoid(...)``.

    c and n are kept divided by exp(m), ``m_t = max(log f + m_(t-1), log i)``, so that inputs of any size fit; the first
    token of an episode sets m to its log i, and n to 1. A segment is a loop over the places of its runs.
    """

    no_decay = ("of_token.bias", "gain")

    names = ("output", "cell", "norm", "max")

    def __init__(self, dims: Dims, options: CellOptions) -> None:
        super().__init__(dims, options.units or dims.width)
        self.heads = dims.heads
        if self.units % self.heads:
            raise ConfigError(
                f"mixer 'slstm' divides its {self.units} units among {self.heads} heads; "
                "set units to a multiple of heads"
            )
        rows = self.units // self.heads
        self.of_token = nn.Linear(dims.width, 4 * self.units)
        self.of_state = nn.Parameter(torch.zeros(self.heads, rows, 4 * rows))
        self.gain = nn.Parameter(torch.ones(self.units))
        with torch.no_grad():
            self.of_token.bias.zero_()
            self.of_token.bias.view(4, self.heads, rows)[1] = evenly(FIRST_FORGET, LAST_FORGET, rows)

    def weights(self) -> list[Tensor]:
        """Gates come in the order i, f, z, o, as in the authors' code."""
        return [self.of_token.weight, self.of_state, self.of_token.bias]

    def advance(self, inputs: Tensor, state: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
        output, cell, norm, largest = state
        carried = (output.unflatten(-1, (self.heads, 1, -1)) @ weights[1]).unflatten(-1, (4, -1)).squeeze(2)
        log_i, f, z, o = (inputs.unflatten(-1, (4, self.heads, -1)).transpose(1, 2) + carried).unbind(2)
        log_i, f, z, o = (x.flatten(1) for x in (log_i, f, z, o))
        old = (F.logsigmoid(f) + largest).masked_fill(norm == 0, float("-inf"))
        largest = torch.maximum(old, log_i).detach()  # a scale, which the quotient cancels
        keep, add = (old - largest).exp(), (log_i - largest).exp()
        cell, norm = keep * cell + add * torch.tanh(z), keep * norm + add
        return [torch.sigmoid(o) * cell / norm, cell, norm, largest]

    def project(self, rows: Float[Tensor, "B t U"]) -> Float[Tensor, "B t D"]:
        """Every head is normalized."""
        heads = rows.unflatten(-1, (self.heads, -1))
        return super().project(F.layer_norm(heads, heads.shape[-1:]).flatten(2) * self.gain)


SPEC = Spec(
    id="N12-slstm", name="slstm", axis="mixer", paper="Beck et al. 2024, arXiv 2405.04517, section 2.2",
    summary="the xLSTM's scalar memory: exponential gates, heads apart; sequential: a token waits for the one before",
    build=ScalarLSTM, options=CellOptions,
    traits=Traits(
        family="KERN", horizon="episode", state="4 U",
        causal_form="no convolution before input and forget gates, no up and down projections after the cell; "
                    "biases of forget gates start between 3 and 6, as in mlstm",
    ),
    formula="c_t = f c_(t-1) + i tanh(z), n_t = f n_(t-1) + i, h_t = sigmoid(o) c_t / n_t, i = exp(i~), "
    "f = sigmoid(f~), [i~, f~, z, o] = W x_t + R h_(t-1) + b, R per head, o_t = W_o norm(h_t)",
)  # fmt: skip
