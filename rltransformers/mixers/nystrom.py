"""Nystrom attention, causal: exact inside the token's own block, landmarks for the completed blocks before it.

Axes: B batch, T tokens, S key rows, H heads, n query blocks, L landmarks.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.spec import Feature, Size, Spec
from rltransformers.functional.call import Call
from rltransformers.functional.taps import depthwise
from rltransformers.mixers.interface import Dims
from rltransformers.mixers.landmarks import MAX_LANDMARKS, TRAITS, LandmarkAttention, pseudo_inverse


@dataclass(frozen=True)
class Options:
    """Options of Nystrom attention.

    Attributes:
        block: tokens of a block, attended exactly while it is the current one.
        landmarks: completed blocks that are kept; default: as many as the memory holds.
        iterations: of the pseudo-inverse; 6 as published, 0 for the exact one.
        conv: taps of a depthwise convolution over past values, added to the output; 0 for none, the paper uses 33.
    """

    block: Size = 8
    landmarks: Annotated[int, Ge(1), Le(MAX_LANDMARKS)] | None = None
    iterations: Annotated[int, Ge(0), Le(100)] = 6
    conv: Annotated[int, Ge(0), Le(4096)] = 0


class Nystrom(LandmarkAttention):
    """Block Nystrom attention (arXiv 2102.03902): ``far = F A^+ G V``, and a convolution over past values."""

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__("nystrom", dims, options.block, options.landmarks, options.conv)
        self.iterations, taps = options.iterations, options.conv
        kernel = torch.empty(dims.heads, taps).uniform_(-1, 1) / math.sqrt(taps) if taps else None
        self.kernel = None if kernel is None else nn.Parameter(kernel)

    def solve(self, between: Tensor, read: Tensor) -> Tensor:
        return pseudo_inverse(between, self.iterations).to(read.dtype) @ read

    def finished(self, mixed: Float[Tensor, "B T H Dv"], keys: Float[Tensor, "B S E"], call: Call) -> Tensor:
        """Adds the convolution, which looks to the past alone; the published one looks to both sides."""
        if self.kernel is None:
            return mixed
        values = self.heads_of(keys)[2].flatten(2)
        rows = F.pad(values, (0, 0, self.kernel.shape[1] - 1 + mixed.shape[1] - values.shape[1], 0))  # or cut
        kernel = self.kernel.repeat_interleave(self.dims.value_dim, 0)
        return mixed + depthwise(rows, kernel, call.tokens).unflatten(2, mixed.shape[2:])


SPEC = Spec(
    id="S16", name="nystrom", axis="mixer", paper="Xiong et al. 2021, arXiv 2102.03902",
    summary="attends exactly inside the current block, and to completed blocks through landmark means and a "
            "pseudo-inverse",
    build=Nystrom, options=Options, example={"mixer": {"name": "nystrom", "block": 3, "landmarks": 4}, "memory": 14},
    traits=TRAITS, offers=(Feature.ROWS, Feature.KEYS),
    formula="far = F A^+ G V over completed blocks, near = softmax inside the own block, merged by their masses",
)  # fmt: skip
