"""Full causal attention over everything the memory holds."""

from rltransformers.attention.interface import Dims
from rltransformers.attention.patterns.interface import Reach
from rltransformers.core.spec import Spec, Traits


def build(dims: Dims) -> Reach:
    """A0; the memory bounds it."""
    return Reach(dims.memory + 1, tokens_per_step=dims.tokens_per_step)


SPEC = Spec(
    id="A0",
    name="full",
    axis="pattern",
    paper="Vaswani et al. 2017, arXiv 1706.03762",
    summary="Every token sees all of its episode that the memory holds.",
    build=build,
    example={"pattern": "full"},
    traits=Traits(horizon="memory"),
)
