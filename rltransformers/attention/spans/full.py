"""Full span."""

from rltransformers.attention.interface import Dims
from rltransformers.attention.spans.interface import Span
from rltransformers.core.spec import Spec


def build(dims: Dims) -> Span:
    """SP0."""
    return Span()


SPEC = Spec(
    id="SP0", name="full", axis="span", paper="-", summary="Heads use the whole window.", build=build,
    example={"span": "full"},
)  # fmt: skip
