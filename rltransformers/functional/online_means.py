"""Online k-means per head: centres that move towards the mean of what was assigned to them since they moved last.

Axis letters: B streams, H heads, T tokens, C clusters, K numbers of a centre.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F


class OnlineMeans(nn.Module):
    """What a module with centres of clusters adds up between two moves: their members' sums and how many they are."""

    sums: Tensor
    counts: Tensor

    def make_sums(self, shape: tuple[int, int, int]) -> None:
        """Register empty sums for centres of this shape, [H, C, K]; checkpoints do not hold them."""
        self.register_buffer("sums", torch.zeros(shape), persistent=False)
        self.register_buffer("counts", torch.zeros(shape[:2]), persistent=False)

    @torch.no_grad()
    def add(self, x: Float[Tensor, "B H T K"], clusters: Int[Tensor, "B H T"], valid: Bool[Tensor, "B 1 T"]) -> None:
        """Count the valid ones of ``x`` as members of their clusters."""
        member = F.one_hot(clusters, self.counts.shape[1]).to(self.sums.dtype) * valid[..., None]
        self.sums += torch.einsum("bhtc,bhtk->hck", member, x.to(self.sums.dtype))
        self.counts += member.sum((0, 2))

    @torch.no_grad()
    def moved(self, centres: Float[Tensor, "H C K"], decay: float) -> Float[Tensor, "H C K"]:
        """``centres`` after a move, and a new count: ``decay`` of each stays; one without members stays as it is."""
        mean = self.sums / self.counts.clamp(min=1)[..., None]
        new = torch.where(self.counts[..., None] > 0, decay * centres + (1 - decay) * mean, centres)
        self.sums.zero_()
        self.counts.zero_()
        return new
