"""How far each head looks: a soft mask over distance that multiplies the weights (Sukhbaatar et al. 2019).

Axes: B batch, H heads, T tokens, L distances, D model width.
"""

from abc import abstractmethod
from typing import Annotated

from annotated_types import Ge, Le
from jaxtyping import Float, Int
from torch import Tensor

from rltransformers.attention.roles import Part, Stage, View
from rltransformers.core.spec import Spec
from rltransformers.functional.call import Call
from rltransformers.mixers.interface import Dims

Ramp = Annotated[float, Ge(1e-6), Le(1e6)]
"""Tokens over which a soft mask falls from 1 to 0; narrower ones round to a hard edge in single precision."""


def soft_mask(span: Float[Tensor, "*n"], distance: Int[Tensor, " L"], ramp: float) -> Float[Tensor, "*n L"]:
    """m_z(d) = clip((ramp + z - d) / ramp, 0, 1) for the listed distances."""
    return ((ramp + span[..., None] - distance.to(span.dtype)) / ramp).clamp(0.0, 1.0)


class Span(Part):
    """A soft mask by distance, after which the weights sum to 1 again.

    The largest span is the memory. What is kept farther back counts by its distance, and is out of sight beyond the
    memory and the ramp: compressed slots of old tokens, and first tokens, which count as one token behind the window of
    their pattern.
    """

    stages = Stage.WEIGHTS

    def __init__(self, dims: Dims, ramp: float) -> None:
        super().__init__()
        self.maximum, self.ramp = dims.memory * dims.tokens_per_step, ramp

    @abstractmethod
    def spans(self, h: Float[Tensor, "B T D"]) -> Float[Tensor, "..."]:
        """Spans in tokens, [H] or [B, H, T]."""

    @abstractmethod
    def mean(self, h: Float[Tensor, "B T D"], valid: Tensor) -> Tensor:
        """Mean span in tokens; the auxiliary loss."""

    def weights(self, weights: Tensor, view: View) -> Tensor:
        weights = weights * view.columns.spread(soft_mask(self.spans(view.h), view.columns.listed, self.ramp))
        return weights / (weights.sum(-1, keepdim=True) + 1e-8)

    def tell(self, h: Tensor, call: Call) -> None:
        valid = call.tokens.valid()
        mean = self.mean(h, valid)
        call.probe.loss("span", mean, valid.sum())
        call.probe.metric("span", mean.detach())


FULL = Spec("SP0", "full", "span", "-", "Heads use the whole window.", Part, formula="m(d) = 1")
