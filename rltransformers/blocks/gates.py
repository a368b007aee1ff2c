"""Gates that join the skip path x with a submodule's output y (Parisotto et al. 2019, arXiv 1910.06764, section 3.2).

All take [..., D] and return the gated stream and the openness in [0, 1], the share of y that passes. A positive bias
closes the gates at the start, so that the stack begins close to the identity.
"""

import torch
from torch import Tensor, nn

from rltransformers.functional.modules import linear


class Gate(nn.Module):
    """Base: two streams in, one out, with the openness beside it."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Gated stream [..., D] and openness [..., D]."""
        raise NotImplementedError("a gate defines forward")


class GRUGate(Gate):
    """r = s(W_r y + U_r x), z = s(W_z y + U_z x - b), h = tanh(W_g y + U_g (r x)), out = (1 - z) x + z h."""

    def __init__(self, width: int, bias: float) -> None:
        super().__init__()
        self.from_y = nn.Linear(width, 3 * width, bias=False)
        self.from_x = nn.Linear(width, 2 * width, bias=False)
        self.candidate = nn.Linear(width, width, bias=False)
        self.bias = nn.Parameter(torch.full((width,), bias))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Openness is z."""
        width = x.shape[-1]
        from_y, y_g = linear(self.from_y, y).split_with_sizes([2 * width, width], -1)
        r, z = (from_y + linear(self.from_x, x)).split_with_sizes([width, width], -1)
        z = torch.sigmoid(z - self.bias)
        h = torch.tanh(y_g + linear(self.candidate, torch.sigmoid(r) * x))
        if h.dtype == z.dtype == x.dtype:
            return torch.lerp(x, h, z), z
        return torch.lerp(x, h.to(x.dtype), z.to(x.dtype)), z  # autocast leaves three dtypes, lerp takes one


class InputGate(Gate):
    """out = s(W x) x + y."""

    def __init__(self, width: int, bias: float) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Openness is 1: y passes whole."""
        return torch.sigmoid(linear(self.linear, x)) * x + y, torch.ones_like(y)


class OutputGate(Gate):
    """out = x + s(W x - b) y."""

    def __init__(self, width: int, bias: float) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)
        self.bias = nn.Parameter(torch.full((width,), bias))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Openness is the sigmoid."""
        openness = torch.sigmoid(linear(self.linear, x) - self.bias)
        return x + openness * y, openness


class HighwayGate(Gate):
    """out = s(W x + b) x + (1 - s(W x + b)) y."""

    def __init__(self, width: int, bias: float) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)
        self.bias = nn.Parameter(torch.full((width,), bias))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Openness is what is not carried."""
        openness = 1 - torch.sigmoid(linear(self.linear, x) + self.bias)
        return x + openness * (y - x), openness


class SigTanhGate(Gate):
    """out = x + s(W y - b) tanh(U y)."""

    def __init__(self, width: int, bias: float) -> None:
        super().__init__()
        self.from_y = nn.Linear(width, 2 * width, bias=False)
        self.bias = nn.Parameter(torch.full((width,), bias))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Openness is the sigmoid."""
        gate, value = linear(self.from_y, y).chunk(2, -1)
        openness = torch.sigmoid(gate - self.bias)
        return x + openness * torch.tanh(value), openness
