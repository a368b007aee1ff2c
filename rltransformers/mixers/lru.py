"""Linear recurrent unit: complex numbers that decay and turn, each at a learned rate of its own.

Axes: B batch, T tokens, D width, N complex numbers.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn

from rltransformers.core.spec import Size, Spec, Traits
from rltransformers.functional.call import Call, chosen
from rltransformers.functional.modules import wide
from rltransformers.functional.scan import complex_scan
from rltransformers.mixers.interface import Dims, LayerState, Mixed, StateMixer, check_order

LEAST = 1e-6
"""Of radii and phases at the start, whose logarithms are learned."""

Radius = Annotated[float, Ge(0), Le(0.999999)]


@dataclass(frozen=True)
class Options:
    """Options of the linear recurrent unit.

    Attributes:
        states: complex numbers that a layer carries; None takes D.
        r_min, r_max: lambda starts in the ring of the complex plane between these radii; radius r carries a number
            for about 1 / (1 - r) tokens.
        max_phase: lambda turns by 0 to so many radians per token at the start.
    """

    states: Size | None = None
    r_min: Radius = 0.9
    r_max: Radius = 0.999
    max_phase: Annotated[float, Ge(1e-6), Le(2 * math.pi)] = 2 * math.pi


class LinearRecurrentUnit(StateMixer):
    """``h_t = lambda * h_(t-1) + gamma * (B x_t)``, ``o_t = Re(C h_t) + d * x_t`` with complex lambda, B, C and h.

    ``lambda = exp(-exp(nu) + i exp(theta))``; gamma starts at ``sqrt(1 - |lambda|^2)`` and its logarithm is learned.
    Source: Orvieto et al. 2023 (arXiv 2303.06349), sections 3.2 to 3.4 and appendix A.
    """

    no_decay = ("nu", "theta", "gamma")

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        check_order("lru", "r_min", options.r_min, "r_max", options.r_max)
        self.states = dims.width if options.states is None else options.states
        squares = torch.empty(self.states).uniform_(options.r_min**2, options.r_max**2)
        decay = -0.5 * squares.clamp(min=LEAST**2).log()
        self.nu = nn.Parameter(decay.log())
        self.theta = nn.Parameter((options.max_phase * torch.rand(self.states)).clamp(min=LEAST).log())
        self.gamma = nn.Parameter(0.5 * (-torch.expm1(-2 * decay)).log())
        self.project = nn.Linear(dims.width, 2 * self.states, bias=False)
        self.out = nn.Linear(2 * self.states, dims.width, bias=False)
        nn.init.normal_(self.project.weight, std=(2 * dims.width) ** -0.5)
        nn.init.normal_(self.out.weight, std=self.states**-0.5)
        self.skip = nn.Parameter(torch.randn(dims.width))

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Real and imaginary parts of h."""
        return {"carry": (2, self.states)}

    def decays(self) -> Float[Tensor, "2 N"]:
        """Real and imaginary parts of lambda, in float32 at least."""
        nu, theta = (wide(x) for x in (self.nu, self.theta))
        radius, phase = (-nu.exp()).exp(), theta.exp()
        return torch.stack([radius * phase.cos(), radius * phase.sin()])

    def forward(self, h: Float[Tensor, "B T D"], state: LayerState, call: Call) -> Mixed:
        entries = self.project(h).unflatten(-1, (2, self.states)) * self.gamma.exp()
        rows, carry = complex_scan(self.decays()[None, None], entries, state["carry"], call.tokens)
        read = self.out(chosen(rows, call.wanted).flatten(2).to(h.dtype))
        return Mixed(read + self.skip * chosen(h, call.wanted), {"carry": carry})


SPEC = Spec(
    id="N7a", name="lru", axis="mixer", paper="Orvieto et al. 2023, arXiv 2303.06349",
    summary="complex numbers that decay and turn at learned rates: a diagonal linear state space",
    build=LinearRecurrentUnit, options=Options,
    traits=Traits(
        family="VAL", horizon="episode", state="2 states",
        causal_form="no GELU and gated linear unit after it: that is the feed-forward part of the backbone's layer",
    ),
    formula="h_t = lambda * h_(t-1) + gamma * (B x_t), o_t = Re(C h_t) + d * x_t, "
    "lambda = exp(-exp(nu) + i exp(theta))",
)  # fmt: skip
