"""Image Transformer, local in one dimension: blocks of queries with a memory in front (Parmar et al. 2018)."""

from dataclasses import dataclass

from rltransformers.attention.patterns.interface import Blocks, blocks
from rltransformers.core.spec import Feature, Size, SizeOrZero, Spec, Traits
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Options:
    """Options of blocks of queries.

    Attributes:
        block: steps of a block of queries.
        before: steps in front of the block that all of its queries see.
    """

    block: Size
    before: SizeOrZero


def build(dims: Dims, options: Options) -> Blocks:
    """Own block and the ``before`` steps in front of it."""
    return blocks("image_1d", dims, options.block, options.before)


SPEC = Spec(
    id="A6", name="image_1d", axis="pattern",
    paper="Parmar et al. 2018, arXiv 1802.05751, section 3.3, 1D local attention",
    summary="Every token sees its own block of `block` steps and the `before` steps in front of the block.",
    build=build, options=Options, example={"pattern": {"name": "image_1d", "block": 3, "before": 2}},
    traits=Traits(
        horizon="block + before - 1",
        state="(block + before - 1) D",
        causal_form="blocks count from the start of the episode",
    ),
    offers=(Feature.REACH,), needs=(Feature.PATTERNS,),
    formula="softmax over s <= t with s >= block floor(t / block) - before",
)  # fmt: skip
