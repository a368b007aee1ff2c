"""BigBird: a window, random keys and the first tokens of the episode in one softmax (Zaheer et al. 2020)."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from rltransformers.attention.patterns.interface import random_blocks, union
from rltransformers.attention.reach import Reach, check_window
from rltransformers.core.spec import Feature, Size, Spec, Traits, Unread
from rltransformers.functional.draws import DrawSeed
from rltransformers.mixers.interface import Dims

NO_DRAWS = Unread("random 0", lambda options: options.random == 0)


@dataclass(frozen=True)
class Options:
    """The three kinds of keys.

    Attributes:
        window: steps, the token's own included.
        random: earlier blocks that are drawn for every block and head.
        sinks: tokens at the start of the episode that stay visible.
        block: steps of a block of the draws; not read where there are none.
        seed: of the draws; not read where there are none.
    """

    window: Size
    random: Annotated[int, Ge(0), Le(256)] = 1
    sinks: Annotated[int, Ge(0), Le(4096)] = 1
    block: Annotated[Size, NO_DRAWS] = 1
    seed: Annotated[DrawSeed, NO_DRAWS] = 0


def build(dims: Dims, options: Options) -> Reach:
    """A band, random blocks and sinks."""
    check_window("bigbird", options.window, dims.memory)
    per = dims.tokens_per_step
    if not options.random:
        return Reach(options.window, sinks=options.sinks, tokens_per_step=per)
    drawn = random_blocks("bigbird", dims, options.block, options.random, options.seed)
    return union((Reach(options.window, tokens_per_step=per), drawn), sinks=options.sinks)


SPEC = Spec(
    id="A14", name="bigbird", axis="pattern", paper="Zaheer et al. 2020, arXiv 2007.14062, section 2",
    summary="Every token sees the newest `window` steps, `random` earlier blocks and the first `sinks` tokens.",
    build=build, options=Options, example={"pattern": {"name": "bigbird", "window": 2, "random": 1, "sinks": 2}},
    traits=Traits(
        causality="X",
        horizon="episode (sinks)",
        state="(memory + sinks) D",
        causal_form="the window looks back only and counts steps, not blocks; random blocks are drawn from all "
                    "that the memory holds wholly, there not from those of the window and of the first tokens; "
                    "global tokens are the first of the episode and see no later ones; for relative positions "
                    "they are at most at the edge of the memory",
    ),
    offers=(Feature.REACH, Feature.HEAD_PATTERNS), needs=(Feature.PATTERNS,),
    formula="softmax over s <= t with t - s < window, or s drawn for (seed, layer, head, t), or s < sinks",
)  # fmt: skip
