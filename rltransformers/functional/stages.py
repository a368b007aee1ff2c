"""Stages around a recurrence: a short convolution in front of it, a gated output behind it.

Axes: B batch, T tokens, D model width, X channels, H heads, V numbers of a head.
"""

import math
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.functional.call import EVERY, Tokens, chosen
from rltransformers.functional.modules import normalize_rms
from rltransformers.functional.taps import depthwise, newest_rows, with_past

OutputGate: TypeAlias = Literal["silu", "sigmoid", "none"]


def bias_of_steps(count: int, shortest: float = 1e-3, longest: float = 0.1) -> Float[Tensor, " n"]:
    """Biases whose softplus are steps of time between these bounds, log-uniformly (Mamba, arXiv 2312.00752)."""
    step = torch.empty(count).uniform_(math.log(shortest), math.log(longest)).exp()
    return step + torch.log(-torch.expm1(-step))  # the inverse of softplus


class ShortConvolution(nn.Module):
    """``silu(sum_k w_k * x_(t-k) + b)``, channel by channel, over the last tokens of the episode; zeros before it.

    Args:
        channels, taps: X and the number of tokens, the token itself included; with 0 taps SiLU alone is left.
        bias: whether b exists.
        silu: whether SiLU follows.

    Attributes:
        state_shape: of the rows that it keeps between calls, [taps - 1, X] or [0, X].
    """

    no_decay = ("bias",)

    kernel: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, channels: int, taps: int = 4, bias: bool = False, silu: bool = True) -> None:
        super().__init__()
        self.silu, self.kernel, self.bias = silu, None, None
        if taps:
            bound = taps**-0.5  # as nn.Conv1d
            self.kernel = nn.Parameter(nn.init.uniform_(torch.empty(channels, taps), -bound, bound))
            self.bias = nn.Parameter(nn.init.uniform_(torch.empty(channels), -bound, bound)) if bias else None
        self.state_shape = (max(taps - 1, 0), channels)

    def forward(
        self, x: Float[Tensor, "B T X"], past: Float[Tensor, "B r X"], tokens: Tokens
    ) -> tuple[Float[Tensor, "B T X"], Float[Tensor, "B r X"]]:
        """Convolve a segment or a step; returns the rows that take the place of ``past``, too."""
        if self.kernel is not None:
            rows = with_past(past, x)
            x, past = depthwise(rows, self.kernel, tokens), newest_rows(rows, past, tokens)
            x = x if self.bias is None else x + self.bias
        return F.silu(x) if self.silu else x, past


class GatedOutput(nn.Module):
    """``W_o (norm(heads) * gate(W_g h))``: RMS normalization of every head, with gains that the heads share.

    Args:
        width: D.
        heads, value_dim: H and V.
        gate: "silu", "sigmoid", or "none" without W_g.
        bias: whether both projections have biases, which start at 0.
        norm: whether heads are normalized; otherwise they stay as they are.
    """

    no_decay = ("gain",)

    gain: nn.Parameter | None

    def __init__(
        self, width: int, heads: int, value_dim: int, gate: OutputGate = "silu", bias: bool = False, norm: bool = True
    ) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(value_dim)) if norm else None
        self.gate = None if gate == "none" else nn.Linear(width, heads * value_dim, bias)
        self.act = F.silu if gate == "silu" else torch.sigmoid
        self.out = nn.Linear(heads * value_dim, width, bias)
        for layer in (self.gate, self.out):
            if layer is not None and bias:
                nn.init.zeros_(layer.bias)

    def forward(
        self, heads: Float[Tensor, "B H T V"], h: Float[Tensor, "B T D"], wanted: slice = EVERY
    ) -> Float[Tensor, "B t D"]:
        """The ``wanted`` tokens of what the heads read; ``h`` are the inputs of the layer."""
        rows = chosen(heads.transpose(1, 2), wanted)
        mixed = (rows if self.gain is None else normalize_rms(rows, self.gain)).flatten(2)
        if self.gate is not None:
            mixed = mixed * self.act(self.gate(chosen(h, wanted)))
        return self.out(mixed.to(h.dtype))
