"""How far each head looks: a soft mask over distance that multiplies the weights (Sukhbaatar et al. 2019).

Axes: B batch, H heads, T tokens, L distances, D model width.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn


def soft_mask(span: Float[Tensor, "*n"], length: int, ramp: float) -> Float[Tensor, "*n L"]:
    """m_z(d) = clip((ramp + z - d) / ramp, 0, 1) for d = 0 .. length-1."""
    d = torch.arange(length, device=span.device, dtype=span.dtype)
    return ((ramp + span[..., None] - d) / ramp).clamp(0.0, 1.0)


class Span(nn.Module):
    """Full span: no mask."""

    def mask(self, h: Float[Tensor, "B T D"], length: int) -> Float[Tensor, "..."] | None:
        """Multiplier by distance, [H, L] or [B, H, T, L]; self (d = 0) always has 1."""
        return None

    def penalty(self, h: Float[Tensor, "B T D"], valid: Tensor) -> Tensor | None:
        """Mean span in tokens, the auxiliary loss X2."""
        return None

    def constrain_(self) -> None:
        """Bring parameters back into their range after an optimiser step."""
