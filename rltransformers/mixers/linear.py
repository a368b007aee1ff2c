"""Linear attention: a sum of key-value products takes the place of the memory."""

from torch import Tensor
from torch.nn import functional as F

from rltransformers.core.spec import Feature, NoOptions, Spec, Traits
from rltransformers.functional.modules import wide
from rltransformers.mixers.interface import Dims
from rltransformers.mixers.kernel import KernelAttention

EPS = 1e-6


def positive(x: Tensor) -> Tensor:
    """``elu(x) + 1``, the feature map of arXiv 2006.16236, equation 7; float32 at least."""
    return F.elu(wide(x)) + 1


class LinearAttention(KernelAttention):
    """Kernel attention with ``elu(x) + 1``."""

    def __init__(self, dims: Dims, options: NoOptions) -> None:
        super().__init__(dims, dims.head_dim, EPS)

    def of_queries(self, q: Tensor) -> Tensor:
        return positive(q)

    def of_keys(self, k: Tensor) -> Tensor:
        return positive(k)


SPEC = Spec(
    id="S3", name="linear", axis="mixer", paper="Katharopoulos et al. 2020, arXiv 2006.16236",
    summary="kernel elu(x) + 1 instead of softmax: a fixed-size sum remembers the whole episode",
    build=LinearAttention,
    traits=Traits(family="KERN", horizon="episode", state="H Dh (Dv + 1)"),
    offers=(Feature.KEYS,),
    formula="o_t = phi(q_t) sum_s phi(k_s) v_s / (phi(q_t) sum_s phi(k_s) + 1e-6), phi = elu + 1",
)  # fmt: skip
