"""A span per head and token, predicted from the token (Sukhbaatar et al. 2019, section 2.2)."""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from rltransformers.attention.spans.interface import Ramp, Span
from rltransformers.core.spec import Feature, Loss, Spec, Traits
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Options:
    """Options of predicted spans.

    Attributes:
        ramp: width of the soft edge in tokens.
        bias: of the prediction: -4 starts near 2 % of the memory.
    """

    ramp: Ramp = 32.0
    bias: Annotated[float, Ge(-100), Le(100)] = -4.0


class DynamicSpan(Span):
    """z_t = maximum * sigmoid(v_h . h_t + b_h)."""

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__(dims, options.ramp)
        self.predict = nn.Linear(dims.width, dims.heads)
        nn.init.constant_(self.predict.bias, options.bias)

    def spans(self, h: Tensor) -> Tensor:
        return self.maximum * torch.sigmoid(self.predict(h)).transpose(1, 2)

    def mean(self, h: Tensor, valid: Tensor) -> Tensor:
        weight = valid.to(h.dtype)
        return (self.spans(h).mean(1) * weight).sum() / weight.sum().clamp(min=1)


SPEC = Spec(
    id="SP2", name="adaptive_dynamic", axis="span", paper="Sukhbaatar et al. 2019, arXiv 1905.07799, section 2.2",
    summary="Each token predicts how far each head looks.",
    build=DynamicSpan, options=Options, example={"span": {"name": "adaptive_dynamic", "ramp": 2.0, "bias": 0.0}},
    traits=Traits(family="EXPL"),
    needs=(Feature.SCORES,), produces=(Loss("span"),),
    formula="as adaptive, with z_t = S sigmoid(v_h x_t + b_h)",
)  # fmt: skip
