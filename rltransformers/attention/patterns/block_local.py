"""Blocks of the episode: every token sees its own block, and some before it."""

from dataclasses import dataclass

from rltransformers.attention.patterns.interface import Blocks, blocks
from rltransformers.core.spec import Feature, Size, SizeOrZero, Spec, Traits
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Options:
    """Options of blocks.

    Attributes:
        block: steps of a block.
        back: earlier blocks that are seen wholly.
    """

    block: Size
    back: SizeOrZero = 0


def build(dims: Dims, options: Options) -> Blocks:
    """Own block and ``back`` earlier ones."""
    return blocks("block_local", dims, options.block, options.back * options.block)


SPEC = Spec(
    id="A5", name="block_local", axis="pattern",
    paper="Qiu et al. 2019, arXiv 1911.02972; survey Lin et al. 2021, arXiv 2106.04554",
    summary="Every token sees its own block of `block` steps and the `back` blocks before it.",
    build=build, options=Options, example={"pattern": {"name": "block_local", "block": 3, "back": 1}},
    traits=Traits(
        horizon="(back + 1) block - 1",
        state="((back + 1) block - 1) D",
        causal_form="blocks count from the start of the episode; a token sees earlier steps of its own block alone",
    ),
    offers=(Feature.REACH,), needs=(Feature.PATTERNS,),
    formula="softmax over s <= t with floor(t / block) - floor(s / block) <= back",
)  # fmt: skip
