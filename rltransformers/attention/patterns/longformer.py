"""Window plus the first tokens of the episode, never forgotten (causal form of global keys)."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from rltransformers.attention.reach import Reach, check_window
from rltransformers.core.spec import Feature, Size, Spec, Traits
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Options:
    """Options of a window with sinks.

    Attributes:
        window: steps that a token sees, its own included.
        sinks: tokens at the start of the episode that stay visible.
    """

    window: Size
    sinks: Annotated[int, Ge(1), Le(4096)] = 1


def build(dims: Dims, options: Options) -> Reach:
    """A band of ``window`` steps and the first ``sinks`` tokens; those outside the window count as just outside it.

    Distances to sinks are clipped at the window edge (as attention sinks do, Xiao et al. 2023, arXiv 2309.17453), so
    relative positions need no table as long as the episode.
    """
    check_window("longformer", options.window, dims.memory)
    return Reach(options.window, sinks=options.sinks, tokens_per_step=dims.tokens_per_step)


SPEC = Spec(
    id="A12", name="longformer", axis="pattern", paper="Beltagy et al. 2020, arXiv 2004.05150",
    summary="Window plus the first `sinks` tokens of the episode.",
    build=build, options=Options, example={"pattern": {"name": "longformer", "window": 3, "sinks": 2}},
    traits=Traits(
        causality="X",
        horizon="episode (sinks)",
        state="(window-1+sinks) D",
        causal_form="global tokens are the first of the episode, keys only, and share the projections of the "
                    "others; for relative positions, those outside the window are `window` steps away",
    ),
    offers=(Feature.REACH,), needs=(Feature.PATTERNS,),
    formula="0 <= d < window, or p_s < sinks",
)  # fmt: skip
