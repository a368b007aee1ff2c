"""Online k-means per head: centers that move towards the mean of what was assigned to them since they moved last.

Axis letters: B streams, H heads, T tokens, C clusters, K numbers of a center.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F


class OnlineMeans(nn.Module):
    """Sums of a module with centers of clusters between two moves: of their members, and how many they are."""

    sums: Tensor
    counts: Tensor

    def make_sums(self, shape: tuple[int, int, int]) -> None:
        """Register empty sums for centers of this shape, [H, C, K]; checkpoints do not hold them."""
        self.register_buffer("sums", torch.zeros(shape), persistent=False)
        self.register_buffer("counts", torch.zeros(shape[:2]), persistent=False)

    def statistics(self) -> list[Tensor]:
        """What several processes add up before the centers move."""
        return [self.sums, self.counts]

    @torch.no_grad()
    def add(self, x: Float[Tensor, "B H T K"], clusters: Int[Tensor, "B H T"], valid: Bool[Tensor, "B 1 T"]) -> None:
        """Count the valid ones of ``x`` as members of their clusters."""
        member = F.one_hot(clusters, self.counts.shape[1]).to(self.sums.dtype) * valid[..., None]
        self.sums += torch.einsum("bhtc,bhtk->hck", member, x.to(self.sums.dtype))
        self.counts += member.sum((0, 2))

    @torch.no_grad()
    def move(
        self, centers: Float[Tensor, "H C K"], decay: float, onto: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        """Move ``centers`` towards the means of their members, and count anew; one without members stays as it is.

        Args:
            decay: share of a center that stays.
            onto: projects what moved, such as onto a sphere; None leaves it where it is.
        """
        mean = self.sums / self.counts.clamp(min=1)[..., None]
        new = decay * centers + (1 - decay) * mean
        centers.copy_(torch.where(self.counts[..., None] > 0, new if onto is None else onto(new), centers))
        self.sums.zero_()
        self.counts.zero_()
