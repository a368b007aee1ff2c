"""Sines and cosines of geometrically spaced frequencies (Vaswani et al. 2017, arXiv 1706.03762, section 3.5)."""

from typing import Annotated

import torch
from annotated_types import Ge
from jaxtyping import Float
from torch import Tensor

Base = Annotated[float, Ge(1)]
"""Ratio of the longest to the shortest wavelength; below 1 angles would grow without bound."""


def frequencies(dims: int, base: float | Tensor, like: Tensor) -> Float[Tensor, " half"]:
    """base^(-2f/dims) for f = 0 .. dims/2 - 1, in at least float32."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    steps = torch.arange(0, dims, 2, device=like.device, dtype=dtype)
    return base ** (-steps / dims)


def sinusoid(place: Tensor, width: int, like: Tensor, base: float | Tensor = 10_000.0) -> Float[Tensor, "*n D"]:
    """Interleaved [sin, cos] of ``place`` [...] at ``width`` / 2 frequencies, in the dtype of ``like``."""
    half = frequencies(width + width % 2, base, like)
    angle = place[..., None].to(half.dtype) * half
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)[..., :width].to(like.dtype)
