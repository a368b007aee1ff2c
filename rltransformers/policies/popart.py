"""A value head that learns targets of any scale: PopArt (Hessel et al. 2018, arXiv 1809.04474)."""

import torch
from torch import Tensor, nn

LEAST, MOST = 1e-2, 1e6  # bounds of the standard deviation, as in V-MPO (arXiv 1909.12238, table 7)


class PopArt(nn.Linear):
    """One linear output in units in which the targets have mean 0 and deviation 1, and its way back to their own units.

    The targets are followed by running means of themselves and of their squares, with ``step``: mean' = (1 - step) mean
    + step mean(G), and likewise of the squares. When they move, weight and bias move against them, so that no value
    changes (eq. 3 and 4): a value is shift + scale (weight · features + bias).

    Args:
        linear: whose parameters are taken over; at first shift is 0 and scale 1.
        step: in (0, 1], of a running mean per call of ``follow``.
    """

    mean: Tensor
    square: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, linear: nn.Linear, step: float) -> None:
        super().__init__(linear.in_features, 1, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self.step = step
        like = self.weight.detach()
        # A mean of squares minus a squared mean: in float32 little of the variance would be left.
        self.register_buffer("mean", like.new_zeros((), dtype=torch.float64))
        self.register_buffer("square", like.new_ones((), dtype=torch.float64))
        self.register_buffer("shift", like.new_zeros(()))
        self.register_buffer("scale", like.new_ones(()))

    def in_units(self, normalized: Tensor) -> Tensor:
        """Values in the units of the targets, of outputs of the linear layer."""
        return torch.addcmul(self.shift, self.scale, normalized)

    @torch.no_grad()
    def follow(self, targets: Tensor) -> None:
        """Move the statistics towards those of ``targets``, in their own units; every value stays what it is."""
        found = targets.double()
        self.mean.lerp_(found.mean(), self.step)
        self.square.lerp_(found.square().mean(), self.step)
        scale = (self.square - self.mean.square()).clamp(min=0.0).sqrt().clamp(LEAST, MOST).to(self.scale.dtype)
        self._change_units(self.mean.to(self.shift.dtype), scale)

    @torch.no_grad()
    def take_units(self, other: "PopArt") -> None:
        """Take over the statistics of ``other``; every value stays what it is."""
        self._change_units(other.shift, other.scale)
        self.mean.copy_(other.mean)
        self.square.copy_(other.square)

    def _change_units(self, shift: Tensor, scale: Tensor) -> None:
        self.weight.mul_(self.scale / scale)
        self.bias.copy_((self.scale * self.bias + self.shift - shift) / scale)
        self.scale.copy_(scale)
        self.shift.copy_(shift)
