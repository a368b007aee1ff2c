"""Convolution by weights that do not depend on the input. Axes: B batch, T tokens, D width, H heads, K taps."""

import torch
from torch import Tensor, nn

from rltransformers.core.spec import Spec
from rltransformers.mixers.convolution import TRAITS, Convolution, Options


class LightConv(Convolution):
    """One kernel per head, whatever the token."""

    name = "light_conv"

    def add_kernels(self) -> None:
        self.kernel = nn.Parameter(nn.init.xavier_uniform_(torch.empty(self.heads, self.taps)))

    def kernels(self, values: Tensor) -> Tensor:
        return self.kernel


SPEC = Spec(
    id="F3", name="light_conv", axis="mixer", paper="Wu et al. 2019, arXiv 1901.10430",
    summary="depthwise convolution over the last K tokens, weights softmax-normalized and shared by a head's channels",
    build=LightConv, options=Options, traits=TRAITS,
    formula="o_tc = sum_k softmax_k(w_h) y_(t-k)c, y = GLU(W_in x)",
)  # fmt: skip
