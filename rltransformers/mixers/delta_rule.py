"""Base of Gated DeltaNet and Kimi Delta Attention: fast weights that forget, then are corrected.

Axes: B batch, T tokens, D width, H heads, R corrections per token, K and V widths of a head.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor

from rltransformers.functional.call import Call
from rltransformers.functional.modules import unit_length
from rltransformers.functional.stages import GatedOutput, ShortConvolution
from rltransformers.mixers.interface import Dims, LayerState, Mixed, StateMixer


@dataclass(frozen=True)
class DeltaOptions:
    """Options that all of them have.

    Attributes:
        negative_eigenvalues: rates of correction reach to 2 instead of 1: a token can turn the sign of what is read
            under its key, which counting needs (Grazzi et al. 2024, arXiv 2411.12537).
        conv: taps of the convolution in front of queries, keys and values; 0 for none.
        norm: RMS normalization of what a head reads. It hides from training that a value fades; what has to last far
            longer than an episode in training is better learned without (docs/lab/memories.md).
    """

    negative_eigenvalues: bool = False
    conv: Annotated[int, Ge(0), Le(64)] = 4
    norm: bool = True


class DeltaRule(StateMixer):
    """``S = a_t S_(t-1)``, then R times ``S = S + beta_t k_t (v_t - S^T k_t)^T``; ``o_t = S_t^T q_t / sqrt(K)``.

    Queries, keys and values pass a short convolution; what is read passes ``out``. Heads that share keys and values
    forget and correct at rates of their own.

    Attributes:
        correct: ``delta_products``, or what takes its place.
        out: the stage behind.
    """

    no_decay = ("log_scale", "step_bias")

    correct: Callable[..., tuple[Tensor, Tensor]]
    out: GatedOutput

    def __init__(self, dims: Dims, options: DeltaOptions, count: int = 1) -> None:
        super().__init__()
        self.dims, self.count, self.top = dims, count, 2.0 if options.negative_eigenvalues else 1.0
        query, key, value = dims.widths
        self.widths = [query, key * count, value * count]
        self.project = dims.projection(dims.width, sum(self.widths))
        self.conv = ShortConvolution(sum(self.widths), options.conv)
        self.rate = dims.projection(dims.width, dims.heads * count)

    @abstractmethod
    def log_decay(self, h: Float[Tensor, "B T D"]) -> Float[Tensor, "B H T *k"] | None:
        """Logarithm of a, at most 0, of heads or of all their channels; None without decay."""

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """The matrix of every head, and rows of the convolution."""
        return {"weights": (self.dims.heads, self.dims.head_dim, self.dims.value_dim), "taps": self.conv.state_shape}

    def forward(self, h: Float[Tensor, "B T D"], state: LayerState, call: Call) -> Mixed:
        """Tells the mean of beta as "rate", and of a as "kept"."""
        dims = self.dims
        rows, taps = self.conv(self.project(h), state["taps"], call.tokens)
        q, k, v = rows.split(self.widths, -1)
        q = unit_length(q.unflatten(-1, (dims.heads, -1))).transpose(1, 2) * dims.head_dim**-0.5
        k, v = (rows.unflatten(-1, (self.count, dims.kv_heads, -1)).permute(0, 3, 1, 2, 4) for rows in (k, v))
        k, v = (rows.repeat_interleave(dims.share, 1) for rows in (unit_length(k), v))
        beta = self.top * self.rate(h).sigmoid().unflatten(-1, (self.count, -1)).permute(0, 3, 1, 2)
        log_decay = self.log_decay(h)
        read, weights = self.correct(q, k, v, beta, state["weights"], call.tokens, log_decay=log_decay)
        call.tell("rate", lambda: beta.transpose(1, 2))
        if log_decay is not None:
            call.tell("kept", lambda: log_decay.exp().transpose(1, 2))
        return Mixed(self.out(read, h, call.wanted), {"weights": weights, "taps": taps})
