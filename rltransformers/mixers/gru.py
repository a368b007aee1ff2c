"""The gated recurrent unit of torch, as a layer. Axes: B batch, D width, U units, N tokens, L places, R runs."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.spec import Spec, Traits
from rltransformers.mixers.cell import Cell, CellOptions, in_one_piece
from rltransformers.mixers.interface import Dims


class GRU(Cell):
    """The cell of ``torch.nn.GRU``; its weights have torch's names."""

    names = ("cell",)

    def __init__(self, dims: Dims, options: CellOptions) -> None:
        super().__init__(dims, options.units or dims.width)
        self.cell = nn.GRUCell(dims.width, self.units)

    def weights(self) -> list[Tensor]:
        """Biases of the state come last."""
        return [self.cell.weight_ih, self.cell.weight_hh, self.cell.bias_ih, self.cell.bias_hh]

    def advance(self, inputs: Tensor, state: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
        """``h = (1 - z) n + z h``."""
        (before,) = state
        (r, z, n), (r_h, z_h, n_h) = inputs.chunk(3, -1), F.linear(before, weights[1], weights[3]).chunk(3, -1)
        new = torch.tanh(n + torch.sigmoid(r + r_h) * n_h)
        return [new + torch.sigmoid(z + z_h) * (before - new)]

    def walk(self, x: Tensor, sizes: Tensor, state: list[Tensor], weights: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """By cuDNN, in the mode that it differentiates; on a CPU its backward pass is quadratic, the loop linear."""
        if not x.is_cuda:
            return super().walk(x, sizes, state, weights)
        out, after = torch.gru(x, sizes, state[0][None], in_one_piece(weights), True, 1, 0.0, True, False)
        return out, [after[0]]


SPEC = Spec(
    id="N12-gru", name="gru", axis="mixer", paper="Cho et al. 2014, arXiv 1406.1078; the form of torch.nn.GRU",
    summary="a GRU from token to token, as a layer beside attention; sequential: a token waits for the one before",
    build=GRU, options=CellOptions,
    traits=Traits(
        family="KERN", horizon="episode", state="U",
        causal_form="torch's cell, where the reset gate acts after the product with the state; a projection "
                    "follows",
    ),
    formula="h_t = (1 - z) n + z h_(t-1), n = tanh(W_n x + b + r (U_n h_(t-1) + c)), "
    "[r, z] = sigmoid(W x + U h_(t-1)), o_t = W_o h_t",
)  # fmt: skip
