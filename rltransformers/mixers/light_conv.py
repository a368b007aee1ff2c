"""Lightweight convolution: every head weighs the last K values by weights that do not depend on the input.

Axes: B batch, T tokens, D width, H heads, K taps.
"""

import torch
from torch import Tensor, nn

from rltransformers.core.spec import Spec, Traits
from rltransformers.mixers.convolution import Convolution, Options
from rltransformers.mixers.interface import Dims


class LightConv(Convolution):
    """One kernel per head, whatever the token."""

    def add_kernels(self) -> None:
        """Logits of the taps."""
        self.kernel = nn.Parameter(nn.init.xavier_uniform_(torch.empty(self.heads, self.taps)))

    def kernels(self, values: Tensor) -> Tensor:
        """[H, K]."""
        return self.kernel


def build(dims: Dims, options: Options) -> LightConv:
    """F3 for one layer."""
    return LightConv("light_conv", dims, options)


SPEC = Spec(
    id="F3",
    name="light_conv",
    axis="mixer",
    paper="Wu et al. 2019, arXiv 1901.10430",
    summary="depthwise convolution over the last K tokens, weights softmax-normalized and shared by a head's channels",
    build=build,
    options=Options,
    example={"mixer": "light_conv"},
    traits=Traits(
        causality="C",
        family="VAL",
        horizon="taps - 1",
        state="(taps - 1) D",
        time="T",
        causal_form="taps before the episode leave their weight to the others (`pad: zero` as published)",
    ),
    formula="o_tc = sum_k softmax_k(w_h) y_(t-k)c, y = GLU(W_in x)",
)
