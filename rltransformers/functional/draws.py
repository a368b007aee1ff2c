"""Random tables that a seed fixes: the same numbers on every device."""

import torch
from jaxtyping import Float
from torch import Tensor


def layer_generator(seed: int, layer: int) -> torch.Generator:
    """A generator on the CPU for the tables of one layer: layers with one seed draw different numbers."""
    return torch.Generator("cpu").manual_seed(seed * 1_000_003 + layer)


def seeded_normal(
    shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype = torch.float64
) -> Float[Tensor, "*shape"]:
    """Standard normal numbers on the CPU, whatever PyTorch's default device is.

    Where that is "meta", nothing is drawn: a network whose size alone is asked for needs no numbers.
    """
    if torch.get_default_device().type == "meta":
        return torch.empty(shape, dtype=dtype)
    return torch.randn(shape, generator=generator, dtype=dtype, device="cpu")
