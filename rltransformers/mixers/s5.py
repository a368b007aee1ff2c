"""S5: a diagonal state space in continuous time, seen at steps of learned length.

Axes: B batch, T tokens, D width, N complex numbers.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn

from rltransformers.core.spec import Size, Spec, Traits
from rltransformers.functional.call import Call, chosen
from rltransformers.functional.modules import wide_type
from rltransformers.functional.scan import complex_products, complex_scan
from rltransformers.mixers.interface import Dims, LayerState, Mixed, StateMixer, check_order

RATE = 0.5
"""Real part of all eigenvalues of HiPPO-N, negated."""

StepLength = Annotated[float, Ge(1e-6), Le(100)]


def hippo_modes(count: int) -> tuple[Float[Tensor, " N"], Float[Tensor, "2 P N"]]:
    """Positive imaginary parts of the eigenvalues of HiPPO-N with P = 2 N states, and their eigenvectors."""
    root = np.sqrt(2 * np.arange(2 * count) + 1.0)
    skew = np.triu(np.outer(root, root), 1) / 2
    turns, vectors = np.linalg.eigh(-1j * (skew - skew.T))  # ascending, in pairs of both signs
    parts = np.stack([vectors.real, vectors.imag])[..., count:]
    return torch.from_numpy(turns[count:].copy()), torch.from_numpy(parts.copy())


@dataclass(frozen=True)
class Options:
    """Options of S5.

    Attributes:
        states: complex numbers that a layer carries, each for itself and its conjugate; None takes D.
        delta_min, delta_max: the length of a step, logarithmically uniform between these at the start; the slowest
            number is carried for about 2 / delta tokens.
    """

    states: Size | None = None
    delta_min: StepLength = 1e-3
    delta_max: StepLength = 0.1


class S5(StateMixer):
    """``h_t = lambda * h_(t-1) + (lambda - 1) / Lambda * (B x_t)``, ``o_t = 2 Re(C h_t) + d * x_t``, complex but x, o.

    ``lambda = exp(Lambda delta)``; Lambda, B and C start as a HiPPO-N system in the basis of its eigenvectors.
    Source: Smith et al. 2023 (arXiv 2208.04933), sections 3 and 4, appendix B.1.
    """

    no_decay = ("rate", "turn", "delta")

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        low, high = options.delta_min, options.delta_max
        check_order("s5", "delta_min", low, "delta_max", high)
        self.states = dims.width if options.states is None else options.states
        self.rate = nn.Parameter(torch.full((self.states,), RATE).log())
        self.turn = nn.Parameter(torch.empty(self.states))
        self.delta = nn.Parameter(torch.empty(self.states).uniform_(float(np.log(low)), float(np.log(high))))
        self.project = nn.Linear(dims.width, 2 * self.states, bias=False)
        self.out = nn.Linear(2 * self.states, dims.width, bias=False)
        self.skip = nn.Parameter(torch.randn(dims.width))
        if not self.turn.is_meta:  # where the size alone is asked for
            self.start_as_hippo()

    @torch.no_grad()
    def start_as_hippo(self) -> None:
        """Turns are those of HiPPO-N; B and C, drawn for all of its states, are written in its eigenvectors."""
        turns, vectors = (x.to(self.turn) for x in hippo_modes(self.states))
        real, imaginary = vectors
        count, width = self.project.weight.shape
        entry = torch.randn(count, width).to(self.turn) * width**-0.5
        read = 2 * torch.randn(width, count).to(self.turn) * count**-0.5
        self.turn.copy_(turns)
        self.project.weight.copy_(torch.cat([real.T @ entry, -imaginary.T @ entry]))
        self.out.weight.copy_(torch.cat([read @ real, -read @ imaginary], 1))

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Real and imaginary parts of h."""
        return {"carry": (2, self.states)}

    def discrete(self) -> tuple[Float[Tensor, "2 N"], Float[Tensor, "2 N"]]:
        """Lambda of a step, and ``(lambda - 1) / Lambda``, by zero-order hold; float32 at least."""
        dtype = wide_type(self.rate)
        rate, turn, delta = self.rate.to(dtype).exp(), self.turn.to(dtype), self.delta.to(dtype).exp()
        phase = turn * delta
        radius, less = (-rate * delta).exp(), torch.expm1(-rate * delta)
        real = less * phase.cos() - 2 * (phase / 2).sin().square()  # of lambda - 1: nothing cancels in short steps
        imaginary = radius * phase.sin()
        size = rate.square() + turn.square()
        of_inputs = torch.stack([imaginary * turn - real * rate, -imaginary * rate - real * turn]) / size
        return torch.stack([radius * phase.cos(), imaginary]), of_inputs

    def forward(self, h: Float[Tensor, "B T D"], state: LayerState, call: Call) -> Mixed:
        decay, of_inputs = self.discrete()
        entries = complex_products(self.project(h).unflatten(-1, (2, self.states)), of_inputs[None, None])
        rows, carry = complex_scan(decay[None, None], entries, state["carry"], call.tokens)
        read = self.out(chosen(rows, call.wanted).flatten(2).to(h.dtype))
        return Mixed(read + self.skip * chosen(h, call.wanted), {"carry": carry})


SPEC = Spec(
    id="N7c", name="s5", axis="mixer", paper="Smith et al. 2023, arXiv 2208.04933",
    summary="a diagonal state space model in continuous time, initialized by HiPPO, with learned step lengths",
    build=S5, options=Options,
    traits=Traits(
        family="VAL", horizon="episode", state="2 states",
        causal_form="one block of HiPPO-N; log(-Re Lambda) is learned, so that nothing can grow; the factor 2 is part "
        "of C; the activation and gate behind it are the feed-forward part of the block",
    ),
    formula="h_t = lambda * h_(t-1) + (lambda - 1) / Lambda * (B x_t), o_t = 2 Re(C h_t) + d * x_t, "
    "lambda = exp(Lambda delta)",
)  # fmt: skip
