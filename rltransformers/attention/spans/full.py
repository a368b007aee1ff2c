"""Full span."""

from rltransformers.attention.roles import Part
from rltransformers.core.spec import NoOptions, Spec
from rltransformers.mixers.interface import Dims


def build(dims: Dims, options: NoOptions) -> Part:
    """SP0."""
    return Part()


SPEC = Spec(
    id="SP0", name="full", axis="span", paper="-", summary="Heads use the whole window.", build=build,
    example={"span": "full"},
    formula="m(d) = 1",
)  # fmt: skip
