"""Base of kernel attentions: projections, and the sums over the episode that stand for its keys and values.

Axes: B batch, T tokens, D width, H heads, G key-value heads, m features.
"""

from abc import abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor

from rltransformers.functional.call import Call, Tokens, chosen
from rltransformers.functional.modules import wide_type
from rltransformers.functional.recurrences import kernel_attention
from rltransformers.mixers.interface import Dims, LayerState, Mixed, StateMixer


def exact_product(x: Float[Tensor, "*n Dh"], rows: Float[Tensor, "*g m Dh"]) -> Float[Tensor, "*n m"]:
    """``x @ rows^T`` in float32 at least, also under autocast."""
    dtype = wide_type(x)
    with torch.autocast(x.device.type, enabled=False):
        return x.to(dtype) @ rows.to(dtype).transpose(-1, -2)


class HeadsMixer(StateMixer):
    """Queries, keys and values per head; a state in place of earlier keys and values."""

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.dims, self.widths = dims, dims.widths
        self.project = dims.projection(dims.width, sum(self.widths))
        self.out = dims.projection(dims.heads * dims.value_dim, dims.width)

    @abstractmethod
    def read(
        self,
        h: Float[Tensor, "B T D"],
        q: Float[Tensor, "B H T Dh"],
        k: Float[Tensor, "B G T Dh"],
        v: Float[Tensor, "B G T Dv"],
        state: LayerState,
        call: Call,
    ) -> tuple[Float[Tensor, "B H T Dv"], LayerState]:
        """Values that every head reads of the episode up to each token, and the new state."""

    def forward(self, h: Float[Tensor, "B T D"], state: LayerState, call: Call) -> Mixed:
        mixed, state = self.read(h, *self.dims.by_head(self.project(h)), state, call)
        mixed = mixed.transpose(1, 2).flatten(2).to(h.dtype)
        return Mixed(self.out(chosen(mixed, call.wanted)), state)


class KernelAttention(HeadsMixer):
    """``o_t = phi(q_t) S_t / (phi(q_t) z_t + eps)``, S and z sums of ``phi(k) v`` and ``phi(k)`` over the episode.

    Source: Katharopoulos et al. 2020 (arXiv 2006.16236), equations 8-12.

    Args:
        features: m, the size of phi.
        eps: added to the denominator.
        floor: of the denominator for every token of the episode so far, where it is not positive by itself; with a
            decay, of which there is never more than one token's worth, for one token.
    """

    def __init__(self, dims: Dims, features: int, eps: float = 0.0, floor: float | None = None) -> None:
        super().__init__(dims)
        self.features, self.eps, self.floor = features, eps, floor

    @abstractmethod
    def of_queries(self, q: Float[Tensor, "B H T Dh"]) -> Float[Tensor, "B H T m"]:
        """phi of queries."""

    @abstractmethod
    def of_keys(self, k: Float[Tensor, "B G T Dh"]) -> Float[Tensor, "B G T m"]:
        """phi of keys."""

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Feature-value products and features, summed over the episode."""
        heads = self.dims.heads
        return {"sum": (heads, self.features, self.dims.value_dim), "norm": (heads, self.features)}

    def read(
        self, h: Tensor, q: Tensor, k: Tensor, v: Tensor, state: LayerState, call: Call
    ) -> tuple[Tensor, LayerState]:
        return self.attend(self.of_queries(q), self.of_keys(k), v, state, call.tokens)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        state: LayerState,
        tokens: Tokens,
        log_decay: Tensor | None = None,
    ) -> tuple[Tensor, LayerState]:
        """``kernel_attention`` with the denominator of the class."""
        floor: Tensor | float | None = self.floor
        if floor is not None and log_decay is None:
            floor = floor * (tokens.p + 1)[:, None, :, None]
        return kernel_attention(query, key, value, state, tokens, self.eps, floor, log_decay)
