"""How heads relate: nothing by default, or mixing before and after the softmax.

Axes: B batch, H heads, T tokens, S keys.
"""

from jaxtyping import Float
from torch import Tensor, nn


class HeadMixing(nn.Module):
    """Heads are independent.

    Attributes:
        mixes: weights and logits are mixed over heads, which needs them explicit and one mask for all heads.
    """

    mixes = False

    def logits(self, logits: Float[Tensor, "B H T S"]) -> Float[Tensor, "B H T S"]:
        """Logits after mixing; called before any mask."""
        return logits

    def weights(self, weights: Float[Tensor, "B H T S"]) -> Float[Tensor, "B H T S"]:
        """Weights after mixing."""
        return weights
