"""Global tokens: the first tokens of the episode, which every token sees for ever."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from rltransformers.attention.reach import Reach
from rltransformers.core.spec import Feature, Spec, Traits
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Options:
    """Tokens at the start of the episode that stay visible."""

    sinks: Annotated[int, Ge(1), Le(4096)] = 1


def build(dims: Dims, options: Options) -> Reach:
    """The token's own step, and the first ``sinks`` tokens."""
    return Reach(1, sinks=options.sinks, tokens_per_step=dims.tokens_per_step)


SPEC = Spec(
    id="A1", name="global", axis="pattern",
    paper="survey Lin et al. 2021, arXiv 2106.04554, section 4.1.1; Ainslie et al. 2020, arXiv 2004.08483",
    summary="Every token sees its own step and the first `sinks` tokens of the episode, nothing else.",
    build=build, options=Options, example={"pattern": {"name": "global", "sinks": 3}},
    traits=Traits(
        causality="X",
        horizon="episode (sinks)",
        state="sinks D",
        causal_form="global tokens are the first of the episode and see no later ones; for relative positions "
                    "they lie just outside the token's own step",
    ),
    offers=(Feature.REACH,), needs=(Feature.PATTERNS,),
    formula="softmax over s < sinks, s <= t, and s = t",
)  # fmt: skip
