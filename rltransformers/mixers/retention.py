"""Retention: a sum of key-value products that decays at a rate per head, of queries and keys that turn.

Axes: B batch, T tokens, D width, H heads, G key-value heads, Dh width of a head, Dv numbers of a value.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.spec import Feature, Spec, Traits
from rltransformers.functional.call import Call
from rltransformers.functional.modules import frequencies, turn, wide_type
from rltransformers.functional.recurrences import causal_sums
from rltransformers.functional.stages import GatedOutput
from rltransformers.mixers.interface import Dims, LayerState, Mixed, StateMixer


@dataclass(frozen=True)
class Options:
    """Options of retention.

    Attributes:
        decay: head h forgets the share 2^-(5 + h) of its sum with every token, for ever ("fixed") or at first
            ("learned").
        base: of the frequencies by which queries and keys turn with the episode position; None turns nothing.
    """

    decay: Literal["fixed", "learned"] = "fixed"
    base: Annotated[float, Ge(1), Le(1e9)] | None = 10_000.0


class Retention(StateMixer):
    """``S_t = a_h S_(t-1) + (R_t k_t) v_t^T``, ``o_t = S_t^T R_t q_t / sqrt(Dh)``, behind it a gated output.

    Source: Sun et al. 2023 (arXiv 2307.08621), equations 1 to 8. R_t turns by p_t, of which only differences count:
    the sum is kept as the next token sees it, so that angles stay small however long an episode is.
    """

    no_decay = ("logit",)

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        self.dims, self.base = dims, options.base
        self.turned = 0 if options.base is None else dims.head_dim // 2 * 2
        self.project = dims.projection(dims.width, sum(dims.widths))
        self.out = GatedOutput(dims.width, dims.heads, dims.value_dim, bias=dims.bias)
        exponents = [5.0 + head for head in range(dims.heads)]
        logit = torch.tensor([n * math.log(2) + math.log1p(-(2.0**-n)) for n in exponents])  # log(a / (1 - a))
        self.logit = nn.Parameter(logit) if options.decay == "learned" else None

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """The sums of key-value products."""
        return {"sum": (self.dims.heads, self.dims.head_dim, self.dims.value_dim)}

    def forward(self, h: Float[Tensor, "B T D"], state: LayerState, call: Call) -> Mixed:
        dims, tokens = self.dims, call.tokens
        q, k, v = dims.by_head(self.project(h))
        q = q * dims.head_dim**-0.5
        log_decay = self.log_decay(h)[:, None].expand(h.shape[0], -1, h.shape[1])
        turns = frequencies(self.turned, self.base or 1.0, h)  # from token to token
        if h.shape[1] > 1:  # the first token is not turned
            angles = torch.arange(h.shape[1], device=h.device)[:, None] * turns
            q, k = (turn(rows, angles.cos(), angles.sin()) for rows in (q, k))
        k, v = k.repeat_interleave(dims.share, 1), v.repeat_interleave(dims.share, 1)
        read, after = causal_sums(q, k, v, state["sum"], tokens, log_decay=log_decay)
        count = torch.full_like(tokens.before, h.shape[1]) if tokens.length is None else tokens.length
        angles = -count[:, None, None, None] * turns
        after = turn(after.mT, angles.cos(), angles.sin()).mT
        return Mixed(self.out(read, h, call.wanted), {"sum": after})

    def log_decay(self, like: Tensor) -> Float[Tensor, " H"]:
        """Logarithms of the decays of all heads; float32 at least."""
        dtype = wide_type(like)
        if self.logit is not None:
            return F.logsigmoid(self.logit.to(dtype))
        head = torch.arange(self.dims.heads, device=like.device, dtype=dtype)
        return torch.log1p(-(2.0 ** -(5 + head)))


SPEC = Spec(
    id="N1", name="retention", axis="mixer", paper="Sun et al. 2023, arXiv 2307.08621",
    summary="RetNet: linear attention without a denominator, with a decay per head; positions rotate queries and "
            "keys",
    build=Retention, options=Options,
    traits=Traits(
        family="KERN", horizon="episode", state="H Dh Dv",
        causal_form="queries and keys turn without the scaling of xPos; RMS normalization with gains that heads share "
        "in place of a group norm; the three scalings that a normalization cancels are left out; values are as wide as "
        "keys, in the authors' code twice as wide",
        half=0.3, rounding="what a head reads is divided by its own size, which is small where products of queries and "
        "keys cancel",
    ),
    offers=(Feature.KEYS,),
    formula="o_t = W_o (norm(S_t^T R_t q_t / sqrt(Dh)) * silu(W_g x_t)), S_t = (1 - 2^-(5 + h)) S_(t-1) + R_t k_t "
    "v_t^T, R_t rotates the channels 2f, 2f+1 by p_t base^(-2f/Dh)",
)  # fmt: skip
