"""Full causal attention over everything the memory holds."""

from rltransformers.attention.reach import Reach
from rltransformers.core.spec import NoOptions, Spec, Traits
from rltransformers.mixers.interface import Dims


def build(dims: Dims, options: NoOptions) -> Reach:
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
    formula="0 <= d <= memory",
)
