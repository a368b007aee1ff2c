"""Every allowed key is used."""

from rltransformers.attention.interface import Dims
from rltransformers.attention.selections.interface import Selection
from rltransformers.core.spec import Spec


def build(dims: Dims) -> Selection:
    """No selection."""
    return Selection()


SPEC = Spec(
    id="C0", name="none", axis="selection", paper="-", summary="All allowed keys are used.", build=build,
    example={"selection": "none"},
)  # fmt: skip
