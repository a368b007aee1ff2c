"""Fast and forgetful memory: traces that decay at learned rates, each under several learned frequencies.

Axes: B batch, T tokens, D width, M traces, P frequencies.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.spec import Size, Spec, Traits
from rltransformers.functional.call import Call, chosen
from rltransformers.functional.modules import evenly, wide
from rltransformers.functional.scan import complex_scan
from rltransformers.mixers.interface import Dims, LayerState, Mixed, StateMixer

SLOWEST, FASTEST = 1e-6, 0.5
"""Rates of the traces at the start, evenly spaced between these: half a trace is left after 693,000 tokens or 1.4."""


@dataclass(frozen=True)
class Options:
    """Options of fast and forgetful memory.

    Attributes:
        traces: numbers that a token adds, each with a rate of its own.
        frequencies: every trace is kept under each of these, so that ages can be told apart.
        period: tokens of the longest period at the start; periods are evenly spaced from 1 on.
    """

    traces: Size = 32
    frequencies: Size = 4
    period: Annotated[float, Ge(1), Le(1e6)] = 1024.0


class FastForgetfulMemory(StateMixer):
    """``S_t = Gamma * S_(t-1) + u_t 1^T`` with ``Gamma_jk = exp(-|alpha_j| + i omega_k)``, complex; read by a gate.

    ``u = W_1 x * sigmoid(W_2 x)``, ``z = W_3 [Re S, Im S]``, ``o = LN(z * s) + (1 - s) * x``, ``s = sigmoid(W_4 x)``.
    Source: Morad et al. 2023 (arXiv 2310.04128), section 4.
    """

    no_decay = ("alpha", "omega")

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        self.shape = (options.traces, options.frequencies)
        self.alpha = nn.Parameter(evenly(SLOWEST, FASTEST, options.traces))
        self.omega = nn.Parameter(2 * math.pi / evenly(1.0, options.period, options.frequencies))
        self.widths = [options.traces, options.traces, dims.width]
        self.project = nn.Linear(dims.width, sum(self.widths))
        self.out = nn.Linear(2 * options.traces * options.frequencies, dims.width)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Real and imaginary parts of S."""
        return {"sum": (2, *self.shape)}

    def decays(self) -> Float[Tensor, "2 M P"]:
        """Real and imaginary parts of Gamma, in float32 at least."""
        alpha, omega = (wide(x) for x in (self.alpha, self.omega))
        return (-alpha.abs()).exp()[:, None] * torch.stack([omega.cos(), omega.sin()])[:, None]

    def forward(self, h: Float[Tensor, "B T D"], state: LayerState, call: Call) -> Mixed:
        """Tells the mean of s as "gate"."""
        value, entry, gate = self.project(h).split(self.widths, -1)
        real = (value * entry.sigmoid())[:, :, None, :, None].expand(-1, -1, 1, *self.shape)
        entries = F.pad(real, (0, 0, 0, 0, 0, 1))  # numbers that a token adds are real
        sums, after = complex_scan(self.decays()[None, None], entries, state["sum"], call.tokens)
        gate = gate.sigmoid()
        call.tell("gate", lambda: gate)
        gate = chosen(gate, call.wanted)
        read = self.out(chosen(sums, call.wanted).flatten(2).to(h.dtype)) * gate
        return Mixed(F.layer_norm(read, read.shape[-1:]) + (1 - gate) * chosen(h, call.wanted), {"sum": after})


SPEC = Spec(
    id="N8", name="ffm", axis="mixer", paper="Morad et al. 2023, arXiv 2310.04128",
    summary="sums that decay at learned rates and turn at learned frequencies: fast and forgetful memory",
    build=FastForgetfulMemory, options=Options,
    traits=Traits(
        family="VAL", horizon="episode", state="2 traces frequencies",
        causal_form="the sums are those of the recurrence; the authors' code divides by powers of Gamma, which takes "
        "float64 and rates below 0.69; s gates in front of the normalization, there behind it; x passes beside it, "
        "there a linear map of x; the slowest rate is 1e-6, there 0.0045",
    ),
    formula="S_t = Gamma * S_(t-1) + u_t 1^T, Gamma_jk = exp(-|alpha_j| + i omega_k), u = W_1 x * sigmoid(W_2 x), "
    "o = LN(W_3 [Re S, Im S] * s) + (1 - s) * x, s = sigmoid(W_4 x)",
)  # fmt: skip
