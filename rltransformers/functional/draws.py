"""Random tables that a seed fixes: the same numbers on every device."""

from collections.abc import Callable
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor

DrawSeed = Annotated[int, Ge(0), Le(2**32 - 1)]
"""Of numbers that are drawn once."""


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
