"""Interface of sequence mixers.

Axes: B batch, T tokens, D model width, E numbers a key row carries, Q numbers of the queries of a token.
There are two kinds. A *row mixer* reads key rows that a memory keeps for it, and may carry a state beside them; a
*state mixer* carries sums or taps of its own and has no memory. Both know of time what ``Call`` says and nothing else.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor, nn

from rltransformers.core.errors import ConfigError
from rltransformers.functional.call import Call
from rltransformers.functional.keys import Past

LayerState = dict[str, Tensor]
"""What one layer keeps from call to call, by name."""


@dataclass(frozen=True)
class Dims:
    """Sizes that every part of one layer agrees on.

    Attributes:
        width: D of the residual stream.
        heads, kv_heads: query heads and key/value heads; kv_heads divides heads.
        head_dim, value_dim: width of one query/key head and of one value head.
        memory: steps of the past that a layer may see besides the token's own.
        tokens_per_step: tokens that share one environment step.
        layer: index of the layer, for mechanisms that draw fixed random numbers.
        bias: whether the projections of queries, keys, values and outputs have biases.
        turned: first channels of a query/key head, those that a position may turn; None for all.
    """

    width: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    memory: int
    tokens_per_step: int = 1
    layer: int = 0
    bias: bool = False
    turned: int | None = None

    @property
    def tokens_in_view(self) -> int:
        """Tokens that the last one of a step may see: those of the steps in memory and of its own step."""
        return (self.memory + 1) * self.tokens_per_step

    @property
    def share(self) -> int:
        """Query heads of a key/value head."""
        return self.heads // self.kv_heads

    @property
    def widths(self) -> list[int]:
        """Numbers of the queries, keys and values of a token."""
        return [self.heads * self.head_dim, self.kv_heads * self.head_dim, self.kv_heads * self.value_dim]

    def by_head(
        self, rows: Float[Tensor, "B T X"]
    ) -> tuple[Float[Tensor, "B H T K"], Float[Tensor, "B G T K"], Float[Tensor, "B G T V"]]:
        """Queries, keys and values, by ``widths`` side by side, head by head; G key/value heads."""
        q, k, v = rows.split(self.widths, -1)
        k, v = (rows.unflatten(-1, (self.kv_heads, -1)).transpose(1, 2) for rows in (k, v))
        return q.unflatten(-1, (self.heads, -1)).transpose(1, 2), k, v

    def projection(self, inputs: int, outputs: int) -> nn.Linear:
        """A projection of attention; a bias starts at 0 (GPT-2, BERT)."""
        layer = nn.Linear(inputs, outputs, bias=self.bias)
        if self.bias:
            nn.init.zeros_(layer.bias)
        return layer


def check_order(mixer: str, least: str, low: float, largest: str, high: float) -> None:
    """Raise ConfigError where the lower end of a range is above the upper one."""
    if low > high:
        raise ConfigError(f"mixer {mixer!r}: {least} ({low:g}) must be at most {largest} ({high:g}); change one")


def check_heads(mixer: str, dims: Dims) -> None:
    """Raise ConfigError unless the heads share the width evenly."""
    if dims.width % dims.heads:
        raise ConfigError(f"mixer {mixer!r} needs heads ({dims.heads}) to divide width ({dims.width}): change one")


@dataclass(frozen=True)
class Mixed:
    """Result of a mixer.

    Attributes:
        out: the wanted tokens, mixed [B, t, D].
        state: after the call.
        logits: what the layer above may build on, or None.
    """

    out: Tensor
    state: LayerState
    logits: Tensor | None = None


class Mixer(nn.Module, ABC):
    """Base of both kinds.

    ``state_shapes()`` names the state tensors and their shapes without the batch axis; a fresh state is all zeros.
    State from before the call counts for token t only where ``tokens.live[t]``; of the tokens in the call, a <= t
    counts when t - a <= p_t. The returned state describes the episode of the last *valid* token and is unchanged for
    rows without valid tokens.

    Attributes:
        shared: names of the parameters and submodules that layers with the same choice of mixer have in common.
    """

    shared: tuple[str, ...] = ()

    def share(self, first: "Mixer") -> None:
        """Take what layers have in common from the first layer with the same choice."""
        for name in self.shared:
            setattr(self, name, getattr(first, name))

    def shared_parameters(self) -> list[nn.Parameter]:
        """The parameters among what is ``shared``."""
        own = [getattr(self, name) for name in self.shared]
        return [each for part in own for each in ([part] if isinstance(part, nn.Parameter) else part.parameters())]

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape per state tensor.

        "taps" and "second_taps" are the newest tokens, all that a mixer looks back at where it has no other state;
        "hidden", "keys" and their rings belong to memories.
        """
        return {}

    def constrain_(self) -> None:
        """Bring parameters back into their range after an optimizer step."""

    def maintain(self) -> None:
        """Learn without gradients from what was seen since the last call; only between collecting and learning."""


class RowMixer(Mixer):
    """Reads the key rows of ``past``; rows further away than p_t tokens belong to other episodes or do not exist.

    Attributes:
        horizon: tokens of the past that a memory has to keep.
        key_width: E.
        sinks: first tokens of an episode that a memory has to keep for ever.
        stored: further tokens behind those of the horizon that a memory has to keep.
        placed: whether queries and key rows depend on the episode position.
    """

    horizon: int
    key_width: int
    sinks: int = 0
    stored: int = 0
    placed: bool = False

    @abstractmethod
    def keys(self, h: Float[Tensor, "B S D"]) -> Float[Tensor, "B S E"]:
        """Key rows, which are cached while acting, of normalized layer inputs; not placed."""

    @abstractmethod
    def queries_and_keys(self, h: Float[Tensor, "B T D"]) -> tuple[Float[Tensor, "B T Q"], Float[Tensor, "B T E"]]:
        """Queries and key rows of the same tokens, in one product; not placed."""

    def placed_queries(self, query: Float[Tensor, "B T Q"], p: Int[Tensor, "B T"]) -> Float[Tensor, "B T R"]:
        """Queries with their episode positions; only called where ``placed``, as ``placed_keys``."""
        raise NotImplementedError("a mixer whose rows depend on the position defines placed_queries")

    def placed_keys(self, keys: Float[Tensor, "B S F"], p: Int[Tensor, "*b S"]) -> Float[Tensor, "B S E"]:
        """Key rows with their episode positions, of all streams or of each."""
        raise NotImplementedError("a mixer whose rows depend on the position defines placed_keys")

    def tables(self, reach: int) -> dict[str, Tensor]:
        """Tables of the mixer over the distances 0 .. reach - 1 under today's weights, by name."""
        return {}

    def table_sources(self) -> list[nn.Module]:
        """The modules whose weights ``tables`` depends on."""
        return []

    @abstractmethod
    def forward(
        self,
        h: Float[Tensor, "B T D"],
        query: Float[Tensor, "B T Q"],
        past: Past,
        state: LayerState,
        call: Call,
        below: Tensor | None,
    ) -> Mixed:
        """Mix the tokens with normalized inputs ``h``; ``past`` holds their own rows, too."""


class StateMixer(Mixer):
    """Carries its own fixed-size state from token to token."""

    @abstractmethod
    def forward(self, h: Float[Tensor, "B T D"], state: LayerState, call: Call) -> Mixed:
        """Mix the tokens with normalized inputs ``h``."""
