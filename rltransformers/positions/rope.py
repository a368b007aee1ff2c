"""Rotary encoding: queries and keys are turned by angles proportional to their place (Su et al. 2021)."""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Feature, Spec
from rltransformers.functional.modules import frequencies, turn
from rltransformers.mixers.interface import Dims
from rltransformers.positions.interface import Acts, Base, Position


@dataclass(frozen=True)
class Options:
    """Options of rotary positions.

    Attributes:
        base: of the frequencies: the slowest turn takes 2 pi times as many tokens.
        dims: first channels of a head that turn, an even number; None: all of them.
    """

    base: Base = 10_000.0
    dims: Annotated[int, Ge(2), Le(1_000_000)] | None = None


class Rope(Position):
    """Places are counted back from the last token of the call, so angles stay small however long a stream runs."""

    acts = Acts.ROTATION

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        head_dim = dims.head_dim if dims.turned is None else dims.turned
        self.dims = head_dim - head_dim % 2 if options.dims is None else options.dims
        self.base = options.base
        if self.dims % 2 or not 0 < self.dims <= head_dim:
            if not head_dim:
                raise ConfigError(
                    "position 'rope' has nothing to turn: set turned of head_mixing 'mla' to at least 2, or position "
                    "to 'none'"
                )
            if head_dim < 2:
                raise ConfigError(
                    f"position 'rope' turns pairs of numbers, and the head width is {head_dim}; set head_dim to at "
                    "least 2, or position to 'none'"
                )
            raise ConfigError(f"rope dims ({self.dims}) must be even, positive and at most the head width ({head_dim})")

    def circle(self, back: Tensor, like: Tensor) -> Tensor:
        half = frequencies(self.dims, self.base, like)
        angle = -back[..., None].to(half.dtype) * half
        return torch.stack([angle.cos(), angle.sin()], -2)

    def turn(self, heads: Tensor, circle: Tensor) -> Tensor:
        """Turn the pairs (2f, 2f + 1) of channels; those behind the first ``dims`` stay."""
        return turn(heads, *circle.to(heads.dtype).unbind(-2))


SPEC = Spec(
    id="P12", name="rope", axis="position", paper="Su et al. 2021, arXiv 2104.09864",
    summary="Rotates queries and keys so that scores depend on distance only.",
    build=Rope, options=Options,
    acts_at="inside attention", needs=(Feature.SCORES, Feature.PRODUCTS),
    formula="l_ts = (R(p_t) q_t) (R(p_s) k_s) / sqrt(Dh), R rotates the channels 2f, 2f+1 by p base^(-2f/dims)",
)  # fmt: skip
