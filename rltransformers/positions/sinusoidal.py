"""Sinusoidal absolute encoding of the episode position, added to the input."""

from dataclasses import dataclass

from torch import Tensor

from rltransformers.core.spec import Spec
from rltransformers.mixers.interface import Dims
from rltransformers.positions.interface import Acts, Base, Position, sinusoid


@dataclass(frozen=True)
class Options:
    """Options of sinusoidal positions.

    Attributes:
        base: of the frequencies: the longest wave is 2 pi times as many tokens.
        scale_input: multiply the input by sqrt(D) first.
    """

    base: Base = 10_000.0
    scale_input: bool = False


class Sinusoidal(Position):
    """x + PE[p], with x optionally scaled by sqrt(D) first as in the paper."""

    acts = Acts.INPUT

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        self.base, self.scale_input = options.base, options.scale_input

    def embed(self, x: Tensor, p: Tensor, timestep: Tensor) -> Tensor:
        if self.scale_input:
            x = x * x.shape[-1] ** 0.5
        return x + sinusoid(p, x.shape[-1], x, self.base)


SPEC = Spec(
    id="P1", name="sinusoidal", axis="position", paper="Vaswani et al. 2017, arXiv 1706.03762",
    summary="Adds sines and cosines of the episode position to the input.",
    build=Sinusoidal, options=Options,
    acts_at="on the input",
    formula="x_t + PE(p_t), PE(p)[2f] = sin(p base^(-2f/D)), PE(p)[2f+1] = cos(p base^(-2f/D))",
)  # fmt: skip
