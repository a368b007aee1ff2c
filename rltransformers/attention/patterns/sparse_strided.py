"""Sparse Transformer, strided: the newest steps, and every `stride`-th one (Child et al. 2019)."""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Bool, Int
from torch import Tensor

from rltransformers.attention.patterns.interface import union
from rltransformers.attention.reach import Reach, Rule, check_memory
from rltransformers.core.spec import Feature, Size, Spec, Traits
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Strided(Rule):
    """Steps whose distance is a multiple of ``stride`` steps."""

    stride: int
    tokens_per_step: int

    def allowed(self, i: Int[Tensor, "B 1 T 1"], distance: Int[Tensor, "b h T N"]) -> Bool[Tensor, "c h T N"]:
        steps = i // self.tokens_per_step - (i - distance) // self.tokens_per_step
        return steps % self.stride == 0


@dataclass(frozen=True)
class Options:
    """Options of strided attention.

    Attributes:
        stride: steps from one visible step to the next, and steps of the local part.
        part: which of the two sets of keys; "both" is their union in one softmax.
    """

    stride: Size
    part: Literal["both", "local", "strided"] = "both"


def build(dims: Dims, options: Options) -> Reach:
    """The ``stride`` steps before the token's own, and those at multiples of it as far as the memory goes."""
    check_memory("pattern 'sparse_strided'", options.stride, dims.memory)
    per = dims.tokens_per_step
    local = Reach(options.stride + 1, tokens_per_step=per)
    strided = Reach(dims.memory + 1, tokens_per_step=per, rule=Strided(options.stride, per))
    return {"local": local, "strided": strided, "both": union((local, strided))}[options.part]


SPEC = Spec(
    id="A8", name="sparse_strided", axis="pattern", paper="Child et al. 2019, arXiv 1904.10509, section 4.2",
    summary="Every token sees the `stride` steps before it and every `stride`-th one further back.",
    build=build, options=Options, example={"pattern": {"name": "sparse_strided", "stride": 2}},
    traits=Traits(
        horizon="memory",
        state="memory D",
        causal_form="the local part is that of the paper, `stride` steps besides the token's own; in OpenAI's masks "
        "one step less",
    ),
    offers=(Feature.REACH,), needs=(Feature.PATTERNS,),
    formula="softmax over d >= 0 with d <= stride (local) or d mod stride = 0 (strided)",
)  # fmt: skip
