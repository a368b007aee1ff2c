"""Sinusoids of the episode position and of the application of a layer, before every layer (Dehghani et al. 2019)."""

import torch
from torch import Tensor

from rltransformers.core.spec import Feature, Spec
from rltransformers.positions.interface import Acts, Position, sinusoid


class PositionAndTime(Position):
    """x + PE[p] + PE[tau] before the tau-th application of a layer, tau = 1, 2, ...

    A stack that applies one layer again and again adds PE[tau] itself; then PE[p] is left to do.
    """

    acts = Acts.INPUT | Acts.EVERY_LAYER

    def embed(self, x: Tensor, p: Tensor, timestep: Tensor) -> Tensor:
        return x + sinusoid(p, x.shape[-1], x)

    def embed_layer(self, x: Tensor, p: Tensor, timestep: Tensor, layer: int) -> Tensor:
        return self.embed(x, p, timestep) + sinusoid(torch.full((), layer, device=x.device), x.shape[-1], x)


SPEC = Spec(
    id="P16", name="ut_2d", axis="position", paper="Dehghani et al. 2019, arXiv 1807.03819, equation 6",
    summary="Adds sines and cosines of the episode position and of the layer's number to the input of every layer.",
    build=PositionAndTime,
    acts_at="on the input", offers=(Feature.LAYER_SIGNALS,),
    formula="x_t + PE(p_t) + PE(tau) before the tau-th layer",
)  # fmt: skip
