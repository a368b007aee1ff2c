"""A span per head and token, predicted from the token (Sukhbaatar et al. 2019, section 2.2)."""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from rltransformers.attention.roles import Part
from rltransformers.attention.spans.interface import Ramp, Span, soft_mask
from rltransformers.core.spec import Feature, Loss, Spec, Traits
from rltransformers.mixers.interface import Dims


class DynamicSpan(Span):
    """z_t = maximum * sigmoid(v_h . h_t + b_h)."""

    def __init__(self, width: int, heads: int, maximum: int, ramp: float, bias: float) -> None:
        super().__init__()
        self.predict = nn.Linear(width, heads)
        nn.init.constant_(self.predict.bias, bias)
        self.maximum = maximum
        self.ramp = ramp

    def spans(self, h: Tensor) -> Tensor:
        """[B, H, T] in tokens."""
        return self.maximum * torch.sigmoid(self.predict(h)).transpose(1, 2)

    def mask(self, h: Tensor, distance: Tensor) -> Tensor:
        """[B, H, T, L]."""
        return soft_mask(self.spans(h), distance, self.ramp)

    def mean(self, h: Tensor, valid: Tensor) -> Tensor:
        """Mean of z over heads and valid tokens."""
        weight = valid.to(h.dtype)
        return (self.spans(h).mean(1) * weight).sum() / weight.sum().clamp(min=1)


@dataclass(frozen=True)
class Options:
    """Options of predicted spans.

    Attributes:
        ramp: width of the soft edge in tokens.
        bias: of the prediction: -4 starts near 2 % of the memory.
    """

    ramp: Ramp = 32.0
    bias: Annotated[float, Ge(-100), Le(100)] = -4.0


def build(dims: Dims, options: Options) -> Part:
    """SP2; the largest span is the memory.

    What is kept farther back counts by its distance, and is out of sight beyond the memory and the ramp: compressed
    slots of old tokens, and first tokens, which count as one token behind the window of their pattern.
    """
    return DynamicSpan(dims.width, dims.heads, dims.memory * dims.tokens_per_step, options.ramp, options.bias)


SPEC = Spec(
    id="SP2",
    name="adaptive_dynamic",
    axis="span",
    paper="Sukhbaatar et al. 2019, arXiv 1905.07799, section 2.2",
    summary="Each token predicts how far each head looks.",
    build=build,
    options=Options,
    example={"span": {"name": "adaptive_dynamic", "ramp": 2.0, "bias": 0.0}},
    traits=Traits(family="EXPL"),
    needs=(Feature.SCORES,),
    produces=(Loss("span"),),
    formula="as adaptive, with z_t = S sigmoid(v_h x_t + b_h)",
)
