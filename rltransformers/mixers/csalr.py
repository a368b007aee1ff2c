"""Compressed self-attention, causal. Axes: B batch, H heads, n query blocks, L landmarks."""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor

from rltransformers.core.spec import Feature, Size, Spec
from rltransformers.functional.modules import wide
from rltransformers.mixers.interface import Dims
from rltransformers.mixers.landmarks import MAX_LANDMARKS, TRAITS, LandmarkAttention, pseudo_inverse


def ridge_solve(
    between: Float[Tensor, "B n H L L"], read: Float[Tensor, "B n H L Dv"], ridge: float, iterations: int
) -> Float[Tensor, "B n H L Dv"]:
    """``(A + ridge I)^-1 read`` in float32 at least; by LU with ``iterations=0``.

    A row of A is positive and sums to 1, so with a ridge of 1 the diagonal is larger than the rest of its row together:
    the matrix can always be inverted.
    """
    matrix = wide(between)
    matrix = matrix + ridge * torch.eye(between.shape[-1], dtype=matrix.dtype, device=matrix.device)
    if iterations == 0:
        with torch.autocast(between.device.type, enabled=False):
            return torch.linalg.solve(matrix, read.to(matrix.dtype)).to(read.dtype)
    return pseudo_inverse(matrix, iterations).to(read.dtype) @ read


@dataclass(frozen=True)
class Options:
    """Options of compressed self-attention.

    Attributes:
        block: tokens of a block, attended exactly while it is the current one.
        landmarks: completed blocks that are kept; default: as many as the memory holds.
        ridge: number added to the diagonal of the attention between landmarks; 1 as published.
        iterations: of the inverse, each of which triples its correct digits in the end; 0 for LU, which files of ONNX
            do not know.
    """

    block: Size = 8
    landmarks: Annotated[int, Ge(1), Le(MAX_LANDMARKS)] | None = None
    ridge: Annotated[float, Ge(1e-3), Le(1e3)] = 1.0
    iterations: Annotated[int, Ge(0), Le(100)] = 8


class CompressedSelfAttention(LandmarkAttention):
    """Landmark attention with ``far = F (A + ridge I)^-1 G V``, whose weights sum to 1 / (1 + ridge)."""

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__("csalr", dims, options.block, options.landmarks)
        self.ridge, self.iterations = options.ridge, options.iterations

    def solve(self, between: Tensor, read: Tensor) -> Tensor:
        return ridge_solve(between, read, self.ridge, self.iterations)


SPEC = Spec(
    id="S15", name="csalr", axis="mixer",
    paper="Chen et al. 2020, IJCAI, Compressed self-attention with low-rank approximation",
    summary="Attends exactly inside the current block, and to completed blocks through landmark means and a "
            "regularized inverse.",
    build=CompressedSelfAttention, options=Options,
    example={"mixer": {"name": "csalr", "block": 3, "landmarks": 4}, "memory": 14},
    traits=TRAITS, offers=(Feature.ROWS, Feature.KEYS),
    formula="far = F (A + I)^-1 G V over completed blocks, near = softmax inside the own block, merged by their masses",
)  # fmt: skip
