"""Dilated window: every `dilation`-th token of a longer past."""

from dataclasses import dataclass

from rltransformers.attention.reach import Reach, check_memory
from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Feature, Size, Spec, Traits
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Options:
    """Options of a dilated window.

    Attributes:
        window: steps that a token sees, its own included.
        dilation: distance between two visible steps; above 1 it counts tokens, so one token has to make a step.
    """

    window: Size
    dilation: Size


def build(dims: Dims, options: Options) -> Reach:
    """Distances 0, dilation, ..., (window - 1) * dilation."""
    window, dilation = options.window, options.dilation
    if dims.tokens_per_step != 1 and dilation != 1:
        raise ConfigError(
            f"pattern 'dilated' counts tokens, but {dims.tokens_per_step} tokens make a step; "
            f"use 'band', which counts steps"
        )
    back = (window - 1) * dilation
    check_memory(f"dilated window {window} x {dilation}", back, dims.memory)
    return Reach(back + 1, dilation=dilation, tokens_per_step=dims.tokens_per_step)


SPEC = Spec(
    id="A3", name="dilated", axis="pattern",
    paper="Beltagy et al. 2020, arXiv 2004.05150; Child et al. 2019, arXiv 1904.10509",
    summary="Every token sees `window` steps, `dilation` apart.",
    build=build, options=Options, example={"pattern": {"name": "dilated", "window": 3, "dilation": 2}},
    traits=Traits(horizon="(window - 1) dilation", state="(window-1) dilation D"),
    offers=(Feature.REACH,), needs=(Feature.PATTERNS,),
    formula="0 <= d < window dilation and d mod dilation = 0",
)  # fmt: skip
