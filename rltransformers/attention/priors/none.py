"""No prior."""

from rltransformers.attention.interface import Dims
from rltransformers.attention.priors.interface import Prior
from rltransformers.core.spec import Spec


def build(dims: Dims) -> Prior:
    """Scores are left alone."""
    return Prior()


SPEC = Spec(
    id="B0", name="none", axis="prior", paper="-", summary="Scores are content and position only.", build=build,
    example={"prior": "none"},
)  # fmt: skip
