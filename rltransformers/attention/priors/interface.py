"""What shifts the scores besides content and position.

Axes: H heads, L distances, T tokens, S keys.
"""

from jaxtyping import Float, Int
from torch import Tensor, nn


class Prior(nn.Module):
    """Does nothing; a prior adds to the scores by distance, or builds on the logits of the layer below.

    Attributes:
        residual: logits of the previous layer are added to the unmasked logits of this one.
    """

    residual = False

    def logits(self, distance: Int[Tensor, " L"]) -> Float[Tensor, "H L"] | None:
        """Additive score for the listed distances."""
        return None
