"""Graph attention: one projection of a token is its query, its key and its value (Velickovic et al. 2018).

Axes: B batch, H heads, T tokens, N key rows, D model width, Z = H V, V width of a head, E = Z + H.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.attention.layer import Attention
from rltransformers.attention.plan import Plan
from rltransformers.attention.roles import Heads, Score
from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import UnitInterval
from rltransformers.core.spec import Feature, Refusal, Spec, Traits
from rltransformers.mixers.interface import Dims


class Additive(Score):
    """``LeakyReLU(a1 z_t + a2 z_s)`` with ``z = W h``, which is read, too (arXiv 1710.10903, equations 1 to 5).

    A key row holds z and, per head, the number ``a2 z``.
    """

    plain = False

    def __init__(self, dims: Dims, slope: float) -> None:
        super().__init__(dims)
        self.slope = slope
        self.width = dims.heads * dims.value_dim
        self.own, self.query_width, self.key_width = 0, dims.heads, self.width + dims.heads
        self.of_query = nn.Parameter(nn.init.xavier_uniform_(torch.empty(dims.heads, dims.value_dim)))
        self.of_key = nn.Parameter(nn.init.xavier_uniform_(torch.empty(dims.heads, dims.value_dim)))

    @property
    def projected(self) -> int:
        return self.width

    def rows(self, made: Float[Tensor, "B T Z"], h: Float[Tensor, "B T D"]) -> tuple[Tensor, Tensor]:
        return self.one_number(made, self.of_query), self.key_rows(made)

    def key_rows(self, made: Float[Tensor, "B *n Z"]) -> Float[Tensor, "B *n E"]:
        return torch.cat([made, self.one_number(made, self.of_key)], -1)

    def one_number(self, z: Float[Tensor, "B *n Z"], vectors: Float[Tensor, "H V"]) -> Float[Tensor, "B *n H"]:
        """Products with one vector per head."""
        return (z.unflatten(-1, vectors.shape) * vectors).sum(-1).to(z.dtype)

    def split_queries(self, query: Float[Tensor, "B T H"]) -> Float[Tensor, "B H T 1"]:
        return query.transpose(1, 2)[..., None]

    def split(self, rows: Float[Tensor, "B *T N E"]) -> tuple[Float[Tensor, "B H *T N 1"], Float[Tensor, "B H *T N V"]]:
        z, k = rows.split_with_sizes([self.width, self.dims.heads], -1)
        return k.movedim(-1, 1)[..., None], z.unflatten(-1, (self.dims.heads, -1)).movedim(-2, 1)

    def content(self, query: Float[Tensor, "B H T 1"], group: Heads) -> Float[Tensor, "B H T N"]:
        """A sum behind a LeakyReLU; not scaled."""
        keys = group.k.squeeze(-1) if group.per_token else group.k.transpose(-1, -2)
        return F.leaky_relu(query + keys, self.slope)


@dataclass(frozen=True)
class Options:
    """Slope of the LeakyReLU for negative sums; with 1 the order of the keys is the same for every query."""

    slope: UnitInterval = 0.2


def build(dims: Dims, plan: Plan, options: Options) -> Attention:
    """Build additive attention; ConfigError for values that are not as wide as keys."""
    if dims.value_dim != dims.head_dim:
        raise ConfigError(
            f"mixer 'additive' reads what it compares, so value_dim ({dims.value_dim}) has to be the head width "
            f"({dims.head_dim}); leave value_dim out or set mixer to 'softmax'"
        )
    return Attention(dims, replace(plan, score=Additive(dims, options.slope)))


SPEC = Spec(
    id="S2", name="additive", axis="mixer", paper="Velickovic et al. 2018, arXiv 1710.10903, equations 1 to 5",
    summary="Graph attention: a score is LeakyReLU of a number of the query plus one of the key; keys are the "
            "values.",
    build=build, options=Options,
    traits=Traits(
        causality="C*",
        family="EXPL",
        state="memory D (training), memory heads (Dh + 1) more (acting)",
        causal_form="the neighbors of a token are the tokens that its pattern allows; a projection joins the heads, "
        "there they stand side by side behind an ELU",
    ),
    offers=(
        *(Feature.SCORES, Feature.LOGITS, Feature.OUTPUTS, Feature.PATTERNS),
        *(Feature.ROWS, Feature.SLOTS, Feature.KEYS),
    ),
    refuses=(Refusal(Feature.SHARED_KEYS, "one projection of every head is its query, its key and its value"),),
    formula="z = W h; o_t = sum_s softmax_s(LeakyReLU(a1 z_t + a2 z_s)) z_s",
)  # fmt: skip
