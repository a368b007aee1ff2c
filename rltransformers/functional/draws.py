"""Random numbers that a seed fixes: the same on every device. Axes: any."""

from collections.abc import Callable
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Float, Int
from torch import Tensor

DrawSeed = Annotated[int, Ge(0), Le(2**32 - 1)]
"""Of numbers that are drawn once."""

PRIME = 2**31 - 1
"""The fifth power is one to one modulo it, and products of two such numbers fit 64 bits."""


def layer_generator(seed: int, layer: int) -> torch.Generator:
    """A generator on the CPU for the tables of one layer: layers with one seed draw different numbers."""
    return torch.Generator("cpu").manual_seed(seed * 1_000_003 + layer)


def fill(table: Tensor, draw: Callable[[], Tensor]) -> Tensor:
    """Fill a table with the numbers of ``draw`` and return it; on the device "meta" nothing is drawn.

    There a network is built whose size alone is asked for.
    """
    return table if table.is_meta else table.copy_(draw())


def seeded_normal(
    shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype = torch.float64
) -> Float[Tensor, "*shape"]:
    """Standard normal numbers on the CPU, whatever PyTorch's default device is."""
    return torch.randn(shape, generator=generator, dtype=dtype, device="cpu")


def layer_key(seed: int, layer: int) -> int:
    """What the draws of one layer are mixed with."""
    return pow(pow(seed + 2, 5, PRIME) + layer + 1, 5, PRIME)


def mix(number: Int[Tensor, "*n"], key: int | Int[Tensor, "*k"]) -> Int[Tensor, "..."]:
    """A number below ``PRIME`` of two others, the fifth power of their sum."""
    base = (number + key + 1) % PRIME
    square = base * base % PRIME
    return square * square % PRIME * base % PRIME
