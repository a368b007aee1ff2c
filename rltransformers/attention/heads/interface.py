"""Base of capsule routings: the votes of heads for output capsules.

Axes: B batch, T tokens, H heads, V value width, N capsules, C width of a capsule, D = N C.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn

from rltransformers.attention.roles import Combine
from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Size
from rltransformers.functional.modules import wide
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Options:
    """Options of every routing.

    Attributes:
        capsules: output capsules, which divide the width; None: as many as heads.
        iterations: rounds in which outputs and routes agree.
    """

    capsules: Size | None = None
    iterations: Annotated[int, Ge(1), Le(10)] = 3


class Capsules(Combine):
    """Heads as input capsules; ``o_h W_hn`` is the vote of head h for output capsule n, N of them."""

    name: str

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        self.heads, self.iterations = dims.heads, options.iterations
        self.capsules = options.capsules or dims.heads
        if dims.width % self.capsules:
            raise ConfigError(
                f"head_mixing {self.name} shares the width ({dims.width}) among {self.capsules} capsules, which have "
                f"to divide it; write {{name: {self.name}, capsules: 1}} or another divisor"
            )
        bound = dims.value_dim**-0.5
        self.weight = nn.Parameter(torch.empty(dims.heads, dims.value_dim, dims.width).uniform_(-bound, bound))

    def votes(self, heads: Float[Tensor, "B T X"]) -> Float[Tensor, "B T H N C"]:
        """Votes of all heads for all capsules; float32 at least."""
        outputs = heads.unflatten(-1, (self.heads, -1))
        votes = torch.einsum("bthv,hvd->bthd", outputs, self.weight).unflatten(-1, (self.capsules, -1))
        return wide(votes)
