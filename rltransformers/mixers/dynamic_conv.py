"""Convolution by weights that the token itself predicts. Axes: B batch, T tokens, D width, H heads, K taps."""

from torch import Tensor, nn

from rltransformers.core.spec import Spec
from rltransformers.mixers.convolution import TRAITS, Convolution, Options


class DynamicConv(Convolution):
    """A kernel per head and token, ``softmax(W_k y_t)``."""

    name = "dynamic_conv"

    def add_kernels(self) -> None:
        self.predict = nn.Linear(self.width, self.heads * self.taps, bias=False)

    def kernels(self, values: Tensor) -> Tensor:
        return self.predict(values).unflatten(-1, (self.heads, self.taps))


SPEC = Spec(
    id="F4", name="dynamic_conv", axis="mixer", paper="Wu et al. 2019, arXiv 1901.10430, equation 4",
    summary="Convolution over the last K tokens with weights that the token predicts, shared by a head's channels.",
    build=DynamicConv, options=Options, traits=TRAITS,
    formula="o_t = W_out sum_(k < K) softmax_k(W_h y_t) y_(t-k), y = GLU(W_in x)",
)  # fmt: skip
