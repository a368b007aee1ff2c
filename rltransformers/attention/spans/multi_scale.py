"""A fixed window per head: small scales in low layers, large ones in high layers (Guo et al. 2020)."""

from collections.abc import Sequence
from dataclasses import dataclass

from rltransformers.attention.reach import Pattern, check_window, in_turn
from rltransformers.attention.roles import Part
from rltransformers.core.spec import Feature, Size, Spec, Traits
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Options:
    """Steps that heads look back, their own included; the heads take them in turn. A list of spans is one per layer."""

    windows: Sequence[Size]


class MultiScale(Part):
    """Every head sees the newest of the keys that its pattern shows, within a window of its own."""

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        self.windows = in_turn("span 'multi_scale': windows", options.windows, dims.heads)
        check_window("multi_scale", max(self.windows), dims.memory)

    def narrowed(self, pattern: Pattern) -> Pattern:
        own = pattern.heads * (len(self.windows) // len(pattern.heads))
        reaches = tuple(reach.within(window) for reach, window in zip(own, self.windows, strict=True))
        return Pattern(reaches[:1] if len(set(reaches)) == 1 else reaches)


SPEC = Spec(
    id="SP3", name="multi_scale", axis="span",
    paper="Guo et al. 2020, Multi-Scale Self-Attention for Text Classification, AAAI, arXiv 1912.00544",
    summary="Each head has a window of its own, fixed: the `windows` in turn; a list gives layers their scales.",
    build=MultiScale, options=Options, example={"span": {"name": "multi_scale", "windows": [1, 3, 5]}},
    traits=Traits(
        family="EXPL",
        horizon="largest window - 1",
        state="(largest window - 1) D",
        causal_form="windows look back only; first tokens that a pattern keeps stay visible",
    ),
    offers=(Feature.REACH, Feature.HEAD_PATTERNS), needs=(Feature.PATTERNS,),
    formula="head h: softmax over s <= t with t - s < windows[h]",
)  # fmt: skip
