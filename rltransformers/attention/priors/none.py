"""No prior."""

from rltransformers.attention.roles import Part
from rltransformers.core.spec import NoOptions, Spec
from rltransformers.mixers.interface import Dims


def build(dims: Dims, options: NoOptions) -> Part:
    """Scores are left alone."""
    return Part()


SPEC = Spec(
    id="B0", name="none", axis="prior", paper="-", summary="Scores are content and position only.", build=build,
    example={"prior": "none"},
    formula="l_ts",
)  # fmt: skip
