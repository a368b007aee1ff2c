"""mLSTM: the matrix memory of the xLSTM, whose exponential gates weigh what a token adds and what a head keeps.

Axes: B batch, T tokens, D width, X inner width, N blocks of C channels, H heads of width K.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Spec, Traits
from rltransformers.functional.call import Call, chosen
from rltransformers.functional.modules import evenly, wide
from rltransformers.functional.recurrences import exponential_attention
from rltransformers.functional.stages import ShortConvolution
from rltransformers.mixers.interface import Dims, LayerState, Mixed, StateMixer

FIRST, LAST = 3.0, 6.0
"""Biases of the forget gates of the first and the last head at the start: shares of 0.953 and 0.998 are kept."""


@dataclass(frozen=True)
class Options:
    """Options of the mLSTM.

    Attributes:
        expansion: inner width, as a multiple of the width of the stream.
        conv: taps of the convolution in front of queries and keys; 0 for none.
        block: neighboring channels that queries, keys and values are made from; where it does not divide the inner
            width, the next smaller number that does.
    """

    expansion: Annotated[int, Ge(1), Le(100)] = 2
    conv: Annotated[int, Ge(0), Le(64)] = 4
    block: Annotated[int, Ge(1), Le(10_000)] = 4


class BlockDiagonal(nn.Module):
    """Maps of N blocks of neighboring channels, each to as many outputs; no bias."""

    def __init__(self, width: int, block: int) -> None:
        super().__init__()
        bound = block**-0.5  # as nn.Linear
        self.weight = nn.Parameter(nn.init.uniform_(torch.empty(width // block, block, block), -bound, bound))

    def forward(self, x: Float[Tensor, "B T X"]) -> Float[Tensor, "B T X"]:
        """Map every block by its own matrix."""
        return torch.einsum("btnc,ncd->btnd", x.unflatten(-1, (-1, self.weight.shape[1])), self.weight).flatten(2)


class MatrixLSTM(StateMixer):
    """``C_t = f_t C_(t-1) + i_t k_t v_t^T``, ``n_t`` alike with k_t alone; ``C_t^T q_t / max(|n_t . q_t|, 1)``.

    Raises:
        ConfigError: heads do not divide the inner width.
    """

    no_decay = ("gates.bias", "gain", "skip")

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        inner = options.expansion * dims.width
        self.heads, self.head_dim = dims.heads, inner // dims.heads
        if inner % dims.heads:
            raise ConfigError(
                f"mlstm needs heads ({dims.heads}) to divide expansion * width ({options.expansion} * {dims.width} = "
                f"{inner}): change one of them"
            )
        block = max(size for size in range(1, options.block + 1) if inner % size == 0)
        self.up = nn.Linear(dims.width, 2 * inner, bias=False)
        self.conv = ShortConvolution(inner, options.conv, bias=True)
        self.query, self.key, self.value = (BlockDiagonal(inner, block) for _ in range(3))
        self.gates = nn.Linear(3 * inner, 2 * dims.heads)
        nn.init.zeros_(self.gates.weight)
        input_gate, forget = self.gates.bias.data.split(dims.heads)
        nn.init.normal_(input_gate, std=0.1)
        forget.copy_(evenly(FIRST, LAST, dims.heads))
        self.gain, self.skip = nn.Parameter(torch.ones(inner)), nn.Parameter(torch.ones(inner))
        self.down = nn.Linear(inner, dims.width, bias=False)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Sums of every head, divided by exp(max), and rows of the convolution."""
        heads, width = self.heads, self.head_dim
        sums = {"sum": (heads, width, width), "norm": (heads, width), "max": (heads,)}
        return {**sums, "taps": self.conv.state_shape}

    def forward(self, h: Float[Tensor, "B T D"], state: LayerState, call: Call) -> Mixed:
        """Tells the mean of f as "kept"."""
        x, gate = self.up(h).chunk(2, -1)
        near, taps = self.conv(x, state["taps"], call.tokens)
        q, k, v = self.query(near), self.key(near), self.value(x)
        gates = self.gates(torch.cat([q, k, v], -1))
        log_input, forget = wide(gates).transpose(1, 2).chunk(2, 1)
        call.tell("kept", lambda: forget.sigmoid().transpose(1, 2))
        q, k, v = (rows.unflatten(-1, (self.heads, -1)).transpose(1, 2) for rows in (q, k, v))
        k = k * self.head_dim**-0.5
        read, after = exponential_attention(q, k, v, log_input, F.logsigmoid(forget), state, call.tokens)
        rows, near, gate = (chosen(rows, call.wanted) for rows in (read.transpose(1, 2), near, gate))
        mixed = F.layer_norm(rows, rows.shape[-1:]).flatten(2) * self.gain + self.skip * near
        return Mixed(self.down((mixed * F.silu(gate)).to(h.dtype)), {**after, "taps": taps})


SPEC = Spec(
    id="N5", name="mlstm", axis="mixer", paper="Beck et al. 2024, arXiv 2405.04517, sections 2.3 and A.2",
    summary="a matrix per head sums keys and values, weighed by an exponential input gate and a forget gate",
    build=MatrixLSTM, options=Options,
    traits=Traits(
        family="KERN", horizon="episode", state="H (K^2 + K + 1) + (conv - 1) X",
        causal_form="norm and feed-forward part are those of the backbone's layer; PyTorch's initial weights, "
                    "there smaller ones; nothing is added to the denominator, in the authors' code 1e-6",
    ),
    formula="[x, z] = W_up h, c = silu(conv(x)); q, k from c, v from x; C_t = f_t C_(t-1) + i_t k_t v_t^T / sqrt(K), "
    "n_t = f_t n_(t-1) + i_t k_t / sqrt(K), f_t = sigmoid(w_f [q, k, v] + b_f), i_t = exp(w_i [q, k, v] + b_i); "
    "o_t = C_t^T q_t / max(|n_t q_t|, 1), out = W_down ((norm(o_t) + s c_t) silu(z_t))",
)  # fmt: skip
