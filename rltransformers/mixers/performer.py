"""Performer: linear attention whose features estimate the softmax. Axes: Dh width of a head, m features."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rltransformers.core.spec import Feature, Size, Spec, Traits
from rltransformers.functional.draws import DrawSeed, fill, layer_generator, seeded_normal
from rltransformers.mixers.interface import Dims
from rltransformers.mixers.kernel import KernelAttention, exact_product

# Exponents of key features are held in [-60, 60], far inside float32 (88): a sum over a million tokens still fits.
# The upper end is met by keys nearly as long as a direction times Dh^(1/4) alone, and only where |w|^2 > 120.
LARGEST = 60.0


def orthogonal_directions(features: int, head_dim: int, generator: torch.Generator) -> Float[Tensor, "m Dh"]:
    """Rows N(0, I), orthogonal inside blocks of ``head_dim`` rows; float64 (arXiv 2009.14794, section 2.4)."""
    blocks = -(-features // head_dim)
    normal = seeded_normal((blocks, head_dim, head_dim), generator)
    basis, upper = torch.linalg.qr(normal)
    # QR alone is not uniform over rotations: the signs of the diagonal of R make it so.
    basis = basis * upper.diagonal(dim1=-2, dim2=-1).sign()[:, None]
    rows = basis.transpose(-1, -2).flatten(0, 1)[:features]
    lengths = seeded_normal((features, head_dim), generator).norm(dim=1)
    return rows * lengths[:, None]


def query_features(q: Float[Tensor, "*n Dh"], directions: Float[Tensor, "m Dh"]) -> Float[Tensor, "*n m"]:
    """``exp(w . q')``, ``q' = q / Dh^(1/4)``, divided by its largest feature: factors common to one query cancel."""
    exponent = exact_product(q, directions) / q.shape[-1] ** 0.25
    return (exponent - exponent.detach().amax(-1, keepdim=True)).exp()


def key_features(k: Float[Tensor, "*n Dh"], directions: Float[Tensor, "m Dh"]) -> Float[Tensor, "*n m"]:
    """``exp(w . k' - |k'|^2 / 2)`` (lemma 1; the factor m^-1/2 cancels).

    Exponents, at most |w|^2 / 2, count as -60 below and as 60 above, which keeps sums of weights finite and above zero.
    """
    product = exact_product(k, directions) / k.shape[-1] ** 0.25
    half_square = k.to(product.dtype).square().sum(-1, keepdim=True) / (2 * math.sqrt(k.shape[-1]))
    return (product - half_square).clamp(-LARGEST, LARGEST).exp()


@dataclass(frozen=True)
class Options:
    """Options of the performer.

    Attributes:
        features: random features m of a head; None takes ``max(Dh, round(Dh ln Dh))``. The error falls with
            ``m ** -0.5``.
        seed: of the random directions, which never change afterwards.
    """

    features: Size | None = None
    seed: DrawSeed = 0


class Performer(KernelAttention):
    """FAVOR+ with positive orthogonal features; ``directions`` is drawn once and saved with the weights.

    The authors' code draws anew while training and adds 1e-6 to every feature; here exponents are bounded from below.
    """

    directions: Tensor

    def __init__(self, dims: Dims, options: Options) -> None:
        features = options.features or max(dims.head_dim, round(dims.head_dim * math.log(dims.head_dim)))
        super().__init__(dims, features)
        self.register_buffer("directions", torch.empty(features, dims.head_dim))
        generator = layer_generator(options.seed, dims.layer)
        fill(self.directions, lambda: orthogonal_directions(features, dims.head_dim, generator))

    def of_queries(self, q: Tensor) -> Tensor:
        return query_features(q, self.directions)

    def of_keys(self, k: Tensor) -> Tensor:
        return key_features(k, self.directions)


SPEC = Spec(
    id="S5", name="performer", axis="mixer", paper="Choromanski et al. 2021, arXiv 2009.14794",
    summary="positive orthogonal random features estimate the softmax kernel with a fixed-size state",
    build=Performer, options=Options,
    traits=Traits(family="KERN", horizon="episode", state="H m (Dv + 1)"),
    offers=(Feature.KEYS,),
    formula="o_t = phi(q_t) sum_s phi(k_s) v_s / phi(q_t) sum_s phi(k_s), phi(x) = exp(W x - |x|^2 / 2) / sqrt(m)",
)  # fmt: skip
