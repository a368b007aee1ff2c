"""A fixed penalty per head, linear in the distance (Press et al. 2022)."""

import math

import torch
from torch import Tensor

from rltransformers.core.spec import Feature, NoOptions, Spec
from rltransformers.mixers.interface import Dims
from rltransformers.positions.interface import Acts, Position


def slopes(heads: int) -> list[float]:
    """2^(-8h/H) for a power of two; otherwise those of the next lower one and every other of the next higher one."""
    lower = 2 ** int(math.log2(heads))
    exact = [2.0 ** (-8.0 * h / lower) for h in range(1, lower + 1)]
    between = [2.0 ** (-8.0 * h / (2 * lower)) for h in range(1, 2 * lower + 1, 2)]
    return exact + between[: heads - lower]


class Alibi(Position):
    """-m_h d, not scaled by the head width; no parameters."""

    acts = Acts.SCORE
    slopes: Tensor

    def __init__(self, dims: Dims, options: NoOptions) -> None:
        super().__init__()
        self.register_buffer("slopes", torch.tensor(slopes(dims.heads)), persistent=False)

    def of_distances(self, distance: Tensor, like: Tensor) -> Tensor:
        return -self.slopes.to(like.dtype) * distance.to(like.dtype)[:, None]

    def scores(self, q: Tensor, table: Tensor) -> Tensor:
        return table.T


SPEC = Spec(
    id="P13", name="alibi", axis="position", paper="Press et al. 2022, arXiv 2108.12409",
    summary="Subtracts a per-head multiple of the distance from the scores.",
    build=Alibi,
    acts_at="inside attention", needs=(Feature.SCORES,),
    formula="l_ts = q_t k_s / sqrt(Dh) - m_h d, m_h = 2^(-8h/H)",
)  # fmt: skip
