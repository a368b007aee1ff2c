"""Every allowed key is used."""

from rltransformers.attention.roles import Part
from rltransformers.core.spec import NoOptions, Spec
from rltransformers.mixers.interface import Dims


def build(dims: Dims, options: NoOptions) -> Part:
    """No selection."""
    return Part()


SPEC = Spec(
    id="C0", name="none", axis="selection", paper="-", summary="All allowed keys are used.", build=build,
    example={"selection": "none"},
    formula="all s that the pattern allows",
)  # fmt: skip
