"""A learned span per head (Sukhbaatar et al. 2019)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rltransformers.attention.spans.interface import Ramp, Span
from rltransformers.core.ranges import UnitInterval
from rltransformers.core.spec import Feature, Loss, Spec, Traits
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Options:
    """Options of learned spans.

    Attributes:
        ramp: width of the soft edge in tokens.
        initial: share of the memory that spans start from.
    """

    ramp: Ramp = 32.0
    initial: UnitInterval = 0.0


class AdaptiveSpan(Span):
    """Span z_h = fraction_h * maximum tokens, fraction in [0, 1]; starts at ``initial``.

    Distance 0 is the token itself, in the authors' code the one before it.
    """

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__(dims, options.ramp)
        self.fraction = nn.Parameter(torch.full((dims.heads,), options.initial))

    def spans(self, h: Tensor) -> Tensor:
        return self.fraction * self.maximum

    def mean(self, h: Tensor, valid: Tensor) -> Tensor:
        return self.fraction.mean() * self.maximum

    def constrain_(self) -> None:
        with torch.no_grad():
            self.fraction.clamp_(0.0, 1.0)


SPEC = Spec(
    id="SP1", name="adaptive", axis="span", paper="Sukhbaatar et al. 2019, arXiv 1905.07799",
    summary="Each head learns how many tokens back it looks.",
    build=AdaptiveSpan, options=Options, example={"span": {"name": "adaptive", "ramp": 2.0, "initial": 0.3}},
    traits=Traits(family="EXPL"),
    needs=(Feature.SCORES,), produces=(Loss("span"),),
    formula="a_ts <- m(d) a_ts / sum_s m(d) a_ts, m(d) = clip((R + z_h - d) / R, 0, 1)",
)  # fmt: skip
