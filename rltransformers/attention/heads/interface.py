"""Base of capsule routings: the votes of heads for output capsules.

Axes: B batch, T tokens, H heads, V value width, N capsules, C width of a capsule, D = N C.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rltransformers.attention.roles import Combine
from rltransformers.core.errors import ConfigError
from rltransformers.mixers.interface import Dims


class Capsules(Combine):
    """Heads as input capsules; ``o_h W_hn`` is the vote of head h for output capsule n.

    Args:
        capsules: N, a divisor of the width; None for as many as there are heads.

    Raises:
        ConfigError: N does not divide the width.
    """

    def __init__(self, name: str, dims: Dims, capsules: int | None, iterations: int) -> None:
        super().__init__()
        self.heads, self.iterations = dims.heads, iterations
        self.capsules = dims.heads if capsules is None else capsules
        if dims.width % self.capsules:
            raise ConfigError(
                f"head_mixing {name} shares the width ({dims.width}) among {self.capsules} capsules, which have to "
                f"divide it; write {{name: {name}, capsules: 1}} or another divisor"
            )
        bound = dims.value_dim**-0.5
        self.weight = nn.Parameter(torch.empty(dims.heads, dims.value_dim, dims.width).uniform_(-bound, bound))

    def votes(self, heads: Float[Tensor, "B T X"]) -> Float[Tensor, "B T H N C"]:
        """Votes of all heads for all capsules; float32 at least."""
        outputs = heads.unflatten(-1, (self.heads, -1))
        votes = torch.einsum("bthv,hvd->bthd", outputs, self.weight).unflatten(-1, (self.capsules, -1))
        return votes.to(torch.promote_types(votes.dtype, torch.float32))
