"""Linear maps and norms without the call of a module, which shows in a step of acting.

Forward hooks of these modules are not run. Axes: ... any leading axes, D width, O outputs.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


def linear(layer: nn.Linear, x: Float[Tensor, "... D"]) -> Float[Tensor, "... O"]:
    """``layer(x)``."""
    return F.linear(x, layer.weight, layer.bias)


def normalised(norm: nn.LayerNorm | None, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
    """``norm(x)``, or x where there is no norm."""
    return x if norm is None else torch.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


@torch.no_grad()
def approach(slow: Mapping[str, Tensor], fast: Mapping[str, Tensor], share: float) -> None:
    """Let every tensor of ``slow`` take on its share of the one of that name; whole numbers and truths are copied."""
    for name, value in slow.items():
        value.lerp_(fast[name], share) if value.is_floating_point() else value.copy_(fast[name])
