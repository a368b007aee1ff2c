"""Which of the allowed keys a query keeps, chosen by content.

Axes: B batch, H heads, T tokens, S keys.
"""

from jaxtyping import Bool, Float
from torch import Tensor


class Selection:
    """Keeps every allowed key.

    Attributes:
        selects: logits are needed explicitly.
    """

    selects = False

    def keep(self, logits: Float[Tensor, "B H T S"]) -> Bool[Tensor, "B H T S"] | None:
        """True where a key stays; forbidden keys carry the lowest finite logit already."""
        return None
