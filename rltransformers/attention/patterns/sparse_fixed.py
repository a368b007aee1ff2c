"""Sparse Transformer, fixed: the own block, and the last steps of every block as its summary (Child et al. 2019)."""

from dataclasses import dataclass
from typing import Annotated, Literal

from jaxtyping import Bool, Int
from torch import Tensor

from rltransformers.attention.patterns.interface import blocks, union
from rltransformers.attention.reach import Reach, Rule
from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Feature, Size, SizeOrZero, Spec, Traits, Unread
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Summaries(Rule):
    """The query's own step, and ``count`` tokens of every block of ``size`` tokens from its ``first`` one on."""

    size: int
    first: int
    count: int
    tokens_per_step: int

    def allowed(self, i: Int[Tensor, "B 1 T 1"], distance: Int[Tensor, "b h T N"]) -> Bool[Tensor, "c h T N"]:
        j = i - distance
        place = j % self.size
        summary = (place >= self.first) & (place < self.first + self.count)
        return summary | (i // self.tokens_per_step == j // self.tokens_per_step)


BLOCK_ALONE = Unread("part 'block'", lambda options: options.part == "block")


@dataclass(frozen=True)
class Options:
    """Blocks, and what of them is seen from afar.

    Attributes:
        block: steps of a block.
        summary: steps at the end of every block that all later tokens see; not read by part "block".
        part: which of the two sets of keys; "both" is their union in one softmax.
        offset: 0 for the last ``summary`` steps of a block, 1 for those before them, and so on; heads may differ.
            Not read by part "block".
    """

    block: Size
    summary: Annotated[Size, BLOCK_ALONE] = 1
    part: Literal["both", "block", "summary"] = "both"
    offset: Annotated[SizeOrZero, BLOCK_ALONE] = 0


def build(dims: Dims, options: Options) -> Reach:
    """Own block, and the summaries as far as the memory goes."""
    size, count, per = options.block, options.summary, dims.tokens_per_step
    first = size - count * (options.offset + 1)
    if first < 0:
        raise ConfigError(
            f"pattern 'sparse_fixed' takes {count} steps at offset {options.offset} of blocks of {size}; "
            f"set block to at least {count * (options.offset + 1)}"
        )
    own = blocks("sparse_fixed", dims, size, 0)
    rule = Summaries(size * per, first * per, count * per, per)
    summary = Reach(dims.memory + 1, tokens_per_step=per, rule=rule)
    return {"block": own, "summary": summary, "both": union((own, summary))}[options.part]


SPEC = Spec(
    id="A9", name="sparse_fixed", axis="pattern", paper="Child et al. 2019, arXiv 1904.10509, section 4.2",
    summary="Every token sees its own block of `block` steps and the last `summary` steps of every earlier one.",
    build=build, options=Options, example={"pattern": {"name": "sparse_fixed", "block": 3}},
    traits=Traits(
        horizon="memory",
        state="memory D",
        causal_form="blocks count from the start of the episode; the summary alone shows a token its own step, too",
    ),
    offers=(Feature.REACH,), needs=(Feature.PATTERNS,),
    formula="softmax over s <= t with floor(s / block) = floor(t / block) or s mod block >= block - summary",
)  # fmt: skip
