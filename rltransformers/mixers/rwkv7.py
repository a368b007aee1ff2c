"""RWKV-7: a matrix per head whose channels forget by themselves, and from which a token takes away what it replaces.

Axes: B batch, T tokens, D width, H heads of width K, N = H K.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.spec import Size, Spec, Traits
from rltransformers.functional.call import Call, chosen
from rltransformers.functional.channels import rank_one_sums
from rltransformers.functional.modules import evenly, unit_length, wide
from rltransformers.functional.taps import newest_rows, with_past
from rltransformers.mixers.interface import Dims, LayerState, Mixed, StateMixer

FASTEST = -math.exp(-0.5)
"""Logarithm of the smallest share that a channel keeps of a token, 0.545."""
INPUTS = {"query": 0.2, "decay": 0.9, "key": 0.7, "value": 0.7, "rate": 0.9, "gate": 0.2}
"""What is made of a mixture of the token and the one before it, with the power of the shares of the latter at first."""


@dataclass(frozen=True)
class Options:
    """Options of RWKV-7.

    Attributes:
        rank: numbers of a token from which decays, and rates, of all channels are made; None for 2.5 sqrt(D), at least
            32, in steps of 32.
        gate_rank: the same of the gate of the output; None for 5 sqrt(D).
    """

    rank: Size | None = None
    gate_rank: Size | None = None


def rank_of(width: int, factor: float) -> int:
    """Numbers between two maps, as the authors choose them: a multiple of 32."""
    return max(32, round(factor * width**0.5 / 32) * 32)


def low_rank(width: int, rank: int, outputs: int, act: nn.Module, bias: Tensor | None = None) -> nn.Sequential:
    """Two maps with ``act`` between them, the first of which starts at 0, and a bias."""
    down, up = nn.Linear(width, rank, bias=False), nn.Linear(rank, outputs, bias=bias is not None)
    nn.init.zeros_(down.weight)
    if bias is not None:
        up.bias.data.copy_(bias)
    return nn.Sequential(down, act, up)


class RWKV7(StateMixer):
    """``S_t = diag(w_t) S_(t-1) - (a_t * k^_t) (k^_t S_(t-1))^T + k~_t v_t^T``, read by ``r_t``."""

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        self.heads, self.head_dim = dims.heads, dims.head_dim
        width, channels = dims.width, dims.heads * dims.head_dim
        place, inside = evenly(0, 1 - 1 / width, width), evenly(-1, 1, dims.head_dim).expand(dims.heads, -1).flatten()
        among, spread = evenly(0, 1, channels), inside * inside.abs()
        self.shares = nn.ParameterDict({name: nn.Parameter(1 - place**power) for name, power in INPUTS.items()})
        self.query, self.key, self.value = (nn.Linear(width, channels, bias=False) for _ in range(3))
        rank, of_gate = options.rank or rank_of(width, 2.5), options.gate_rank or rank_of(width, 5)
        self.decay = low_rank(width, rank, channels, nn.Tanh(), 6 * among - 5.5 + 2.5 * spread)
        self.rate = low_rank(width, rank, channels, nn.Identity(), 0.4 * among - 0.39 + 0.3 * spread)
        self.gate = low_rank(width, of_gate, channels, nn.Sigmoid())
        self.removal = nn.Parameter(0.76 - 0.1 * among)  # k^ before it gets length 1, as a multiple of k
        self.rate_share = nn.Parameter(torch.full((channels,), 1.02))  # share of k~ that the rate decides
        self.bonus = nn.Parameter(torch.full((channels,), -0.04))
        self.gain, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.out = nn.Linear(channels, width, bias=False)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """The matrix of every head, and the inputs of the last token."""
        return {"weights": (self.heads, self.head_dim, self.head_dim), "shift": (1, self.query.in_features)}

    def forward(self, h: Float[Tensor, "B T D"], state: LayerState, call: Call) -> Mixed:
        """Tells the mean of a as "rate", and of w as "kept"."""
        rows = with_past(state["shift"], h)
        step = rows[:, :-1].masked_fill((call.tokens.p == 0)[..., None], 0.0) - h
        inputs = {name: h + step * share for name, share in self.shares.items()}
        query, key, value = self.query(inputs["query"]), self.key(inputs["key"]), self.value(inputs["value"])
        rate = self.rate(inputs["rate"]).sigmoid()
        logits = self.decay(inputs["decay"])
        log_decay = FASTEST * wide(logits).sigmoid()
        direction = unit_length(self.by_head(key * self.removal), 1e-12)
        key = key * (1 + (rate - 1) * self.rate_share)
        q, k, v, a, g = (self.by_head(x) for x in (query, key, value, rate, log_decay))
        # What is taken away is read before the matrix decays: a share of at least 0.545 is undone.
        read, weights = rank_one_sums(q, k, v, direction * (-g).exp(), direction * a, state["weights"], call.tokens, g)
        call.tell("rate", lambda: rate)
        call.tell("kept", lambda: log_decay.exp())
        heads = F.layer_norm(read, read.shape[-1:], eps=1e-5 * self.head_dim)
        bonus = (self.by_head(query * key * self.bonus).sum(-1, keepdim=True) * v).transpose(1, 2).flatten(2)
        mixed = heads.transpose(1, 2).flatten(2) * self.gain + self.bias + bonus
        mixed, gate = chosen(mixed, call.wanted), self.gate(chosen(inputs["gate"], call.wanted))
        after = {"weights": weights, "shift": newest_rows(rows, state["shift"], call.tokens)}
        return Mixed(self.out((mixed * gate).to(h.dtype)), after)

    def by_head(self, x: Float[Tensor, "B T N"]) -> Float[Tensor, "B H T K"]:
        """Channels of every head."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


SPEC = Spec(
    id="N11b", name="rwkv7", axis="mixer", paper="Peng et al. 2025, arXiv 2503.14456, section 4",
    summary="RWKV-7: every channel of a matrix decays at its own rate, and a token removes part of what its key "
            "reads",
    build=RWKV7, options=Options,
    traits=Traits(
        family="KERN", horizon="episode", state="H K^2 + D",
        causal_form="no residual from the values of the first layer; the feed-forward part of the backbone's "
                    "layer in place of channel mixing; PyTorch's initial weights, and in every layer the initial "
                    "decays and shares of the authors' first layer",
    ),
    formula="S_t = S_(t-1) (diag(w_t) - k^_t (a_t k^_t)^T) + v_t k~_t^T, o_t = S_t r_t; w_t = exp(-exp(-1/2) "
    "sigmoid(b + W_2 tanh(W_1 x))), a_t = sigmoid(b + A_2 A_1 x), k^_t = k_t xi / |k_t xi|, k~_t = k_t (1 + (a_t - 1) "
    "alpha), x each a mixture of x_t and x_(t-1); out = W_o (g_t (norm(o_t) + (r_t rho k~_t) v_t))",
)  # fmt: skip
