"""Base of scores without keys: the values are all that a key row holds.

Axes: B batch, H heads, G value heads, T tokens, N key rows, D model width, E = G V, V value width.
"""

from jaxtyping import Float
from torch import Tensor

from rltransformers.attention.roles import Heads, Score
from rltransformers.core.spec import Feature
from rltransformers.mixers.interface import Dims, check_heads

EXPLICIT = (Feature.SCORES, Feature.LOGITS, Feature.OUTPUTS, Feature.PATTERNS, Feature.ROWS, Feature.VALUES)
"""Features of every explicit softmax, whatever its logits are made of."""


class ValuesOnly(Score):
    """Logits in which no key has a part; they come from ``of_distances`` or ``by_distance``.

    The key of a row is never looked at, so the value stands in its place.
    """

    plain = False

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.own, self.query_width, self.key_width = 0, 1, dims.kv_heads * dims.value_dim

    def rows(self, made: Float[Tensor, "B T E"], h: Float[Tensor, "B T D"]) -> tuple[Tensor, Tensor]:
        """Any number for a query, and values."""
        return h[..., :1], made

    def split_queries(self, query: Float[Tensor, "B T 1"]) -> Float[Tensor, "B H T 1"]:
        return query[:, None].expand(-1, self.dims.heads, -1, -1)

    def split(self, rows: Float[Tensor, "B *T N E"]) -> tuple[Tensor, Tensor]:
        v = rows.unflatten(-1, (self.dims.kv_heads, -1)).movedim(-2, 1)
        return v, v

    def content(self, query: Float[Tensor, "B H T K"], group: Heads) -> Float[Tensor, "B H T N"]:
        return query.new_zeros(*query.shape[:3], group.v.shape[-2])


def check_value_heads(name: str, dims: Dims) -> None:
    """Raise ConfigError unless heads of values share the width evenly, where no other size was given."""
    if dims.value_dim == dims.width // dims.heads:
        check_heads(name, dims)
