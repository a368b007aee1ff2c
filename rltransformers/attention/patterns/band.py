"""Sliding window: the newest steps only."""

from dataclasses import dataclass

from rltransformers.attention.reach import Reach, check_window
from rltransformers.core.spec import Feature, Size, Spec, Traits
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Options:
    """Steps that a token sees, its own included."""

    window: Size


def build(dims: Dims, options: Options) -> Reach:
    """The newest ``window`` steps."""
    check_window("band", options.window, dims.memory)
    return Reach(options.window, tokens_per_step=dims.tokens_per_step)


SPEC = Spec(
    id="A2", name="band", axis="pattern", paper="Beltagy et al. 2020, arXiv 2004.05150; survey Lin et al. 2021",
    summary="Every token sees the newest `window` steps.",
    build=build, options=Options, example={"pattern": {"name": "band", "window": 4}},
    traits=Traits(horizon="window - 1", state="(window-1) D"),
    offers=(Feature.REACH,), needs=(Feature.PATTERNS,),
    formula="0 <= d < window, in steps",
)  # fmt: skip
