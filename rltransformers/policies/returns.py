"""How a Decision Transformer reads the return that is asked for, if not as a token. W model width, "..." any axes."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.functional.modules import linear

ReturnIn = Literal["sequence", "condition"]
"""Whether returns are tokens of the sequence, or only the newest one conditions what the sequence was made into."""


class ReturnCondition(nn.Module):
    """Features that depend on one return: a feed-forward block behind a LayerNorm whose scale and shift it decides.

    Adaptive LayerNorm as in DiT (Peebles & Xie 2022, arXiv 2212.09748, section 3.2). What is conditioned is the output
    of the sequence, so that the sequence, and what acting remembers of it, does not depend on any return.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Linear(1, width)
        self.modulate = nn.Linear(width, 2 * width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, features: Float[Tensor, "... W"], scaled: Float[Tensor, "..."]) -> Float[Tensor, "... W"]:
        """The features under a return in network units."""
        asked = F.silu(linear(self.embed, scaled.unsqueeze(-1)))
        scale, shift = linear(self.modulate, asked).chunk(2, -1)
        normal = torch.layer_norm(features, features.shape[-1:])
        return features + linear(self.contract, F.gelu(linear(self.expand, normal * (1.0 + scale) + shift)))
