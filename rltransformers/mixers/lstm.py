"""The long short-term memory of torch, as a layer. Axes: B batch, D width, U units, N tokens, L places, R runs."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.spec import Spec, Traits
from rltransformers.mixers.cell import Cell, CellOptions, in_one_piece
from rltransformers.mixers.interface import Dims


class LSTM(Cell):
    """The cell of ``torch.nn.LSTM``; its weights have torch's names. A segment is one call of torch's network."""

    names = ("output", "cell")

    def __init__(self, dims: Dims, options: CellOptions) -> None:
        super().__init__(dims, options.units or dims.width)
        self.cell = nn.LSTMCell(dims.width, self.units)

    def weights(self) -> list[Tensor]:
        """Biases of the state come last."""
        return [self.cell.weight_ih, self.cell.weight_hh, self.cell.bias_ih, self.cell.bias_hh]

    def advance(self, inputs: Tensor, state: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
        """``c = f c + i g``, ``h = o tanh(c)``."""
        i, f, g, o = (inputs + F.linear(state[0], weights[1], weights[3])).chunk(4, -1)
        cell = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
        return [torch.sigmoid(o) * torch.tanh(cell), cell]

    def walk(self, x: Tensor, sizes: Tensor, state: list[Tensor], weights: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """By torch's network, in the mode that cuDNN differentiates; without dropout all modes are the same."""
        weights = in_one_piece(weights) if x.is_cuda else weights
        out, *after = torch.lstm(x, sizes, [old[None] for old in state], weights, True, 1, 0.0, True, False)
        return out, [new[0] for new in after]


SPEC = Spec(
    id="N12-lstm", name="lstm", axis="mixer",
    paper="Hochreiter & Schmidhuber 1997; Gers et al. 2000; the form of torch.nn.LSTM",
    summary="an LSTM from token to token, as a layer beside attention; sequential: a token waits for the one before",
    build=LSTM, options=CellOptions,
    traits=Traits(
        family="KERN", horizon="episode", state="2 U",
        causal_form="torch's cell; a projection follows",
    ),
    formula="c_t = f c_(t-1) + i tanh(W_g x + U_g h_(t-1)), h_t = o tanh(c_t), [i, f, o] = sigmoid(W x + U h_(t-1)), "
    "o_t = W_o h_t",
)  # fmt: skip
