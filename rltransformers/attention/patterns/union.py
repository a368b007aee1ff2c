"""Several patterns in one softmax: a token sees what any of them shows (Child et al. 2019, merged heads)."""

from collections.abc import Sequence
from dataclasses import dataclass

from rltransformers.attention.patterns.interface import union
from rltransformers.attention.reach import Reach
from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Choice, Feature, Spec, Traits
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Options:
    """Patterns whose keys are joined."""

    patterns: Sequence[Choice]


def build(dims: Dims, options: Options) -> Reach:
    """The OR of the masks."""
    if not options.patterns:
        raise ConfigError("pattern 'union' joins patterns, but its list is empty; set pattern to 'full'")
    reaches: list[Reach] = []
    for choice in options.patterns:
        reach = choice.build(dims)
        if not isinstance(reach, Reach):
            raise ConfigError(
                f"pattern 'union' joins what patterns show, but {choice.name!r} chooses the keys of a query itself; "
                f"take {choice.name!r} out of its patterns"
            )
        reaches.append(reach)
    return union(tuple(reaches))


SPEC = Spec(
    id="A10",
    name="union",
    axis="pattern",
    paper="Child et al. 2019, arXiv 1904.10509, section 5.2, merged heads",
    summary="Every token sees what any of `patterns` shows, in one softmax; lists interleave layers or split heads.",
    build=build,
    options=Options,
    example={"pattern": {"name": "union", "patterns": [{"name": "dilated", "window": 3, "dilation": 3},
                                                       {"name": "longformer", "window": 2, "sinks": 1}]}},
    traits=Traits(horizon="the largest of its patterns", state="the largest of its patterns"),
    offers=(Feature.REACH,),
    needs=(Feature.PATTERNS,),
    formula="softmax over the s <= t that at least one of the patterns allows",
)  # fmt: skip
