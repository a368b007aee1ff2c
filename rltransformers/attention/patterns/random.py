"""Random keys: for every query a few of its past, always the same ones (Zaheer et al. 2020)."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from rltransformers.attention.patterns.interface import random_blocks
from rltransformers.attention.reach import Reach
from rltransformers.core.spec import Feature, Size, Spec, Traits
from rltransformers.functional.draws import DrawSeed
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Options:
    """Options of drawn blocks.

    Attributes:
        count: earlier blocks that are drawn for every block.
        block: steps of a block.
        seed: of the draws.
    """

    count: Annotated[int, Ge(1), Le(256)]
    block: Size = 1
    seed: DrawSeed = 0


def build(dims: Dims, options: Options) -> Reach:
    """Own block and drawn ones."""
    return random_blocks("random", dims, options.block, options.count, options.seed)


SPEC = Spec(
    id="A4", name="random", axis="pattern", paper="Zaheer et al. 2020, arXiv 2007.14062, section 2",
    summary="Every token sees its own block of `block` steps and `count` earlier ones, drawn once for all.",
    build=build, options=Options, example={"pattern": {"name": "random", "count": 2}},
    traits=Traits(
        causality="C*",
        horizon="memory",
        state="memory D",
        causal_form="drawn without replacement from the blocks that the memory holds wholly, by a hash of seed, layer, "
        "head and the number of the block in the episode",
    ),
    offers=(Feature.REACH, Feature.HEAD_PATTERNS), needs=(Feature.PATTERNS,),
    formula="softmax over s <= t with b(s) = b(t) or b(s) in draws(seed, layer, head, b(t)), b(t) = floor(t / block)",
)  # fmt: skip
