"""Sinusoidal absolute encoding of the episode position whose base of the wavelengths is learned."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.spec import NoOptions, Spec
from rltransformers.functional.modules import wide
from rltransformers.mixers.interface import Dims
from rltransformers.positions.interface import Acts, Position, sinusoid

START = 10_000.0  # the base of Vaswani et al. 2017


class LearnedBase(Position):
    """x + PE[p] with ``base = exp(softplus(raw))``, which is above 1 for every ``raw``: no wavelength is shorter."""

    acts = Acts.INPUT

    def __init__(self, dims: Dims, options: NoOptions) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.full((), math.log(START - 1)))  # softplus^-1(ln START)

    def embed(self, x: Tensor, p: Tensor, timestep: Tensor) -> Tensor:
        """Input plus the encoding of p, in float32 at least: an angle is off by p times the error of a frequency."""
        raw = wide(self.raw)
        return x + sinusoid(p, x.shape[-1], x, F.softplus(raw).exp())


SPEC = Spec(
    id="P3", name="sinusoidal_learned_base", axis="position",
    paper="Wang et al. 2021, On Position Embeddings in BERT, ICLR",
    summary="Adds sines and cosines of the episode position whose base is learned; it starts from 10,000.",
    build=LearnedBase,
    acts_at="on the input",
    formula="x_t + PE(p_t) with base = exp(softplus(raw)), raw learned",
)  # fmt: skip
