"""Mamba-2: a state space whose heads decay at rates that the token sets, in place of a memory.

Axes: B batch, T tokens, D width, H heads of P numbers, N numbers of the state for each of them.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.spec import Size, Spec, Traits
from rltransformers.functional.call import Call, chosen
from rltransformers.functional.modules import normalize_rms, wide
from rltransformers.functional.recurrences import causal_sums
from rltransformers.functional.stages import ShortConvolution, bias_of_steps
from rltransformers.mixers.interface import Dims, LayerState, Mixed, StateMixer, check_heads, check_order

Delta = Annotated[float, Ge(1e-6), Le(10)]


@dataclass(frozen=True)
class Options:
    """Options of Mamba-2.

    Attributes:
        state: numbers N that are kept for every number of the inner width.
        expand: the inner width in widths D; there are as many times more heads.
        conv: tokens that the convolution in front covers, the token itself included; 0 leaves it out.
        delta_min, delta_max: between them the step of a head lies at the start, log-uniformly: head h keeps
            exp(-A_h delta) of its state from token to token, A_h from 1 to 16.
    """

    state: Size = 64
    expand: Annotated[int, Ge(1), Le(16)] = 2
    conv: Annotated[int, Ge(0), Le(64)] = 4
    delta_min: Delta = 1e-3
    delta_max: Delta = 0.1


class Mamba2(StateMixer):
    """``S_t = exp(-A delta_t) S_(t-1) + delta_t B_t x_t^T``, ``y_t = S_t^T C_t + D x_t``, behind it a gate and a norm.

    Source: Dao & Gu 2024 (arXiv 2405.21060), sections 6 and 7, with one group: B and C are those of all heads.

    Raises:
        ConfigError: heads do not divide the width, or delta_min is larger than delta_max.
    """

    no_decay = ("step_bias", "log_rate", "skip", "gain")

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        check_heads("mamba2", dims)
        check_order("mamba2", "delta_min", options.delta_min, "delta_max", options.delta_max)
        self.heads, self.inner, self.state = options.expand * dims.heads, options.expand * dims.width, options.state
        mixed = self.inner + 2 * self.state  # x, B and C
        self.widths = [self.inner, mixed, self.heads]
        self.project = nn.Linear(dims.width, sum(self.widths), bias=False)
        self.conv = ShortConvolution(mixed, options.conv, bias=True)
        self.step_bias = nn.Parameter(bias_of_steps(self.heads, options.delta_min, options.delta_max))
        self.log_rate = nn.Parameter(torch.empty(self.heads).uniform_(1, 16).log())
        self.skip = nn.Parameter(torch.ones(self.heads))
        self.gain = nn.Parameter(torch.ones(self.inner))
        self.out = nn.Linear(self.inner, dims.width, bias=False)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """The state of every head, and the last rows in front of the convolution."""
        return {"sum": (self.heads, self.state, self.inner // self.heads), "taps": self.conv.state_shape}

    def forward(self, h: Float[Tensor, "B T D"], state: LayerState, call: Call) -> Mixed:
        """Tells the mean of exp(-A delta) as "kept"."""
        gate, mixed, step = self.project(h).split(self.widths, -1)
        mixed, taps = self.conv(mixed, state["taps"], call.tokens)
        x, key, query = mixed.split([self.inner, self.state, self.state], -1)
        x = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        key, query = (rows[:, None].expand(-1, self.heads, -1, -1) for rows in (key, query))
        delta = F.softplus(wide(step) + self.step_bias).transpose(1, 2)
        log_decay = -self.log_rate.exp()[:, None] * delta
        call.tell("kept", lambda: log_decay.exp().transpose(1, 2))
        value = x * delta[..., None]
        read, total = causal_sums(query, key, value, state["sum"], call.tokens, log_decay=log_decay)
        read = read + self.skip[:, None, None] * x
        y = chosen(read.transpose(1, 2).flatten(2), call.wanted) * F.silu(chosen(gate, call.wanted))
        return Mixed(self.out(normalize_rms(y, self.gain).to(h.dtype)), {"sum": total, "taps": taps})


SPEC = Spec(
    id="N3", name="mamba2", axis="mixer", paper="Dao & Gu 2024, arXiv 2405.21060",
    summary="Mamba 2: a state space model whose heads decay at rates that the token sets, after a short "
            "convolution",
    build=Mamba2, options=Options,
    traits=Traits(
        family="KERN", horizon="episode", state="expand N D + (conv - 1) (expand D + 2 N)",
        causal_form="heads are as wide as those of attention, there 64 numbers; one group",
    ),
    formula="o_t = W_o norm(y_t * silu(z_t)), y_t = S_t^T C_t + D x_t, S_t = exp(-A delta_t) S_(t-1) + delta_t B_t "
    "x_t^T, delta_t = softplus(W_d h_t + b), [x, B, C]_t = silu(conv(W h))_t, z_t = W_z h_t",
)  # fmt: skip
