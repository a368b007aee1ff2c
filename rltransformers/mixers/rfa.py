"""Random feature attention: sines and cosines of random projections estimate a Gaussian kernel; a gate may forget.

Axes: B batch, T tokens, D width, H heads, G key-value heads, r random directions, Dh width of a head.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.spec import Feature, Size, Spec, Traits
from rltransformers.functional.call import Call
from rltransformers.functional.draws import DrawSeed, fill, layer_generator, seeded_normal
from rltransformers.functional.modules import wide, wide_type
from rltransformers.mixers.interface import Dims, LayerState
from rltransformers.mixers.kernel import KernelAttention

SMALLEST_LENGTH = 1e-6
"""A query or key that is shorter is not stretched to length 1."""


def fourier_features(
    x: Float[Tensor, "B G T Dh"], directions: Float[Tensor, "G r Dh"]
) -> Float[Tensor, "B G T features"]:
    """``[sin w.u, cos w.u] / sqrt(r)`` with ``u = x / |x|``, in float32 at least (arXiv 2103.02143, theorem 1)."""
    dtype = wide_type(x)
    with torch.autocast(x.device.type, enabled=False):
        unit = F.normalize(x.to(dtype), dim=-1, eps=SMALLEST_LENGTH)
        angle = unit @ directions.to(dtype).transpose(-1, -2)
        return torch.cat([angle.sin(), angle.cos()], -1) / directions.shape[1] ** 0.5


@dataclass(frozen=True)
class Options:
    """Options of random feature attention.

    Attributes:
        directions: random directions r of a head; there are 2 r features. The error falls with ``r ** -0.5``.
        sigma: width of the Gaussian kernel over unit vectors; weights estimate exp(q.k / sigma^2).
        learned_scale: learn a factor per dimension of a head in place of one sigma, as the authors do.
        gate: forget the past by a learned gate.
        floor: smallest denominator for every token of the episode so far (with a gate, for one): sines and cosines
            estimate weights that may be negative. An output is at most as large as a value divided by the floor.
        seed: of the random directions, which never change afterwards.
    """

    directions: Size = 64
    sigma: Annotated[float, Ge(0.01), Le(1e3)] = 1.0
    learned_scale: bool = True
    gate: bool = False
    floor: Annotated[float, Ge(1e-6), Le(100)] = 1e-3
    seed: DrawSeed = 0


class RandomFeatureAttention(KernelAttention):
    """Kernel attention whose features estimate ``exp(-|u_q - u_k|^2 / (2 sigma^2))`` of unit queries and keys.

    ``directions`` is drawn once and saved with the weights; the authors draw from a pool while training. Features are
    divided by sqrt(r), so that a weight lies between -1 and 1; the authors' code multiplies them by 0.1 and holds the
    denominator above 1, which shrinks what the first tokens of an episode read.
    """

    directions: Tensor
    scale: nn.Parameter | None
    gate: nn.Linear | None

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__(dims, 2 * options.directions, floor=options.floor)
        shape = dims.kv_heads, options.directions, dims.head_dim
        self.register_buffer("directions", torch.empty(shape))
        scale = nn.Parameter(torch.ones(shape[0], 1, shape[2])) if options.learned_scale else None
        self.register_parameter("scale", scale)
        self.gate = nn.Linear(dims.width, dims.kv_heads) if options.gate else None
        fill(self.directions, lambda: seeded_normal(shape, layer_generator(options.seed, dims.layer)) / options.sigma)

    def of_queries(self, q: Tensor) -> Tensor:
        return fourier_features(q, self._scaled().repeat_interleave(self.dims.share, 0))

    def of_keys(self, k: Tensor) -> Tensor:
        return fourier_features(k, self._scaled())

    def read(
        self, h: Tensor, q: Tensor, k: Tensor, v: Tensor, state: LayerState, call: Call
    ) -> tuple[Tensor, LayerState]:
        """With a gate g the sums become ``g S + (1 - g) phi(k) v^T`` (section 3.2). Tells the mean of g as "kept"."""
        if self.gate is None:
            return super().read(h, q, k, v, state, call)
        logit = self.gate(h).transpose(1, 2)
        logit = wide(logit)
        call.tell("kept", lambda: logit.sigmoid().transpose(1, 2))
        key = self.of_keys(k) * (-logit).sigmoid()[..., None]
        return self.attend(self.of_queries(q), key, v, state, call.tokens, -F.softplus(-logit))

    def _scaled(self) -> Tensor:
        return self.directions if self.scale is None else self.directions * self.scale


SPEC = Spec(
    id="S4", name="rfa", axis="mixer", paper="Peng et al. 2021, arXiv 2103.02143, sections 3.1 and 3.2",
    summary="linear attention with random Fourier features, which estimate a Gaussian kernel; optionally with a "
            "forget gate",
    build=RandomFeatureAttention, options=Options,
    traits=Traits(
        family="KERN", horizon="episode", state="2 H r (Dv + 1)",
        causal_form="directions are drawn once, in the authors' code from a pool while training; queries and keys are "
        "divided by their length, there by length + 1e-3; the denominator is at least `floor` (t + 1), or `floor` "
        "with a gate, there 1 for features that are smaller",
    ),
    offers=(Feature.KEYS,),
    formula="o_t = phi(q_t) S_t / max(phi(q_t) z_t, floor (t + 1)), S_t = S_(t-1) + phi(k_t) v_t^T or, with a "
    "gate, g S_(t-1) + (1 - g) phi(k_t) v_t^T, phi(x) = [sin W x/|x|, cos W x/|x|] / sqrt(r)",
)  # fmt: skip
