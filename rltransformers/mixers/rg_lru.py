"""Real-gated linear recurrent unit: numbers whose decay every token sets, in the recurrent block of Griffin.

Axes: B batch, T tokens, D width, N numbers.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.spec import Spec, Traits
from rltransformers.functional.call import Call, chosen
from rltransformers.functional.modules import wide_type
from rltransformers.functional.scan import scan
from rltransformers.functional.stages import ShortConvolution
from rltransformers.mixers.interface import Dims, LayerState, Mixed, StateMixer, check_order

SHARPNESS = 8.0
"""c of the paper."""
LEAST = 1e-30
"""Under the square root, whose slope at 0 is infinite."""

Decay = Annotated[float, Ge(1e-6), Le(0.999999)]


@dataclass(frozen=True)
class Options:
    """Options of the real-gated linear recurrent unit.

    Attributes:
        expansion: numbers carried per number of the model's width.
        conv: taps of the convolution in front; 0 leaves it out.
        a_min, a_max: at the start a token with a fully open recurrence gate keeps a share between these of a number.
    """

    expansion: Annotated[float, Ge(1), Le(16)] = 1.0
    conv: Annotated[int, Ge(0), Le(64)] = 4
    a_min: Decay = 0.9
    a_max: Decay = 0.999


class RealGatedLRU(StateMixer):
    """``h_t = a_t * h_(t-1) + sqrt(1 - a_t^2) * (i_t * x_t)``, ``log a_t = -8 softplus(Lambda) * r_t``.

    r and i are sigmoids of maps of x, which is a short convolution of ``W_x h``; ``o = W_o (gelu(W_y h) * h_t)``.
    Source: De et al. 2024 (arXiv 2402.19427), sections 2.3 and 2.4.
    """

    no_decay = ("rate",)

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        low, high = options.a_min, options.a_max
        check_order("rg_lru", "a_min", low, "a_max", high)
        self.size = round(options.expansion * dims.width)
        self.project = nn.Linear(dims.width, 2 * self.size)
        self.conv = ShortConvolution(self.size, options.conv, bias=True, silu=False)
        self.gates = nn.Linear(self.size, 2 * self.size)
        rate = -torch.empty(self.size).uniform_(low, high).log() / SHARPNESS
        self.rate = nn.Parameter(torch.expm1(rate).log())  # the inverse of softplus
        self.out = nn.Linear(self.size, dims.width)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """The numbers carried, and rows of the convolution."""
        return {"carry": (self.size,), "taps": self.conv.state_shape}

    def forward(self, h: Float[Tensor, "B T D"], state: LayerState, call: Call) -> Mixed:
        """Tells the mean of what is kept per token as "kept"."""
        branch, x = self.project(h).chunk(2, -1)
        x, taps = self.conv(x, state["taps"], call.tokens)
        recurrence, entry = self.gates(x).to(wide_type(x)).sigmoid().chunk(2, -1)
        log_keep = -SHARPNESS * F.softplus(self.rate.to(recurrence.dtype)) * recurrence
        call.tell("kept", lambda: log_keep.exp())
        scale = (-torch.expm1(2 * log_keep)).clamp(min=LEAST).sqrt()
        rows, carry = scan(log_keep.exp(), scale * (entry * x), state["carry"], call.tokens)
        mixed = F.gelu(chosen(branch, call.wanted)) * chosen(rows, call.wanted).to(h.dtype)
        return Mixed(self.out(mixed), {"carry": carry, "taps": taps})


SPEC = Spec(
    id="N7b", name="rg_lru", axis="mixer", paper="De et al. 2024, arXiv 2402.19427, sections 2.3 and 2.4",
    summary="the recurrent layer of Griffin: a diagonal recurrence whose decay every token sets, after a short "
            "convolution",
    build=RealGatedLRU, options=Options,
    traits=Traits(
        family="VAL", horizon="episode", state="conv expansion D",
        causal_form="maps of r and i are full, where the authors' code has blocks; the first token of an episode is "
        "multiplied by sqrt(1 - a_t^2), as all others and in the paper; at the start a^8, not a, is drawn from "
        "`a_min`..`a_max`, as in the paper; GELU is exact",
    ),
    formula="h_t = a_t * h_(t-1) + sqrt(1 - a_t^2) * (i_t * x_t), log a_t = -8 softplus(Lambda) * r_t, r_t, i_t = "
    "sigmoid(W_r x_t), sigmoid(W_i x_t), x = conv(W_x h), o = W_o (gelu(W_y h) * h_t)",
)  # fmt: skip
