"""Blockwise attention: every head looks at its own block, or one a fixed number of blocks back (Qiu et al. 2019)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxtyping import Bool, Int
from torch import Tensor

from rltransformers.attention.reach import Constant, Reach, Rule, check_memory, in_turn
from rltransformers.core.spec import Feature, Size, SizeOrZero, Spec, Traits
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Shifted(Rule):
    """The token itself, and the block of ``size`` tokens ``shifts[h]`` blocks back.

    The own block is seen while there is no such block, and with ``own`` in any case.
    """

    size: int
    shifts: tuple[int, ...]
    own: bool
    of_heads: Constant = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "of_heads", Constant([[[shift]] for shift in self.shifts]))

    def allowed(self, i: Int[Tensor, "B 1 T 1"], distance: Int[Tensor, "b h T N"]) -> Bool[Tensor, "B g T N"]:
        block = i // self.size
        back = block - (i - distance) // self.size
        shift = self.of_heads.values
        inside = (back == 0) if self.own else (back == 0) & (block < shift)
        return (back == shift) | inside | (distance == 0)


@dataclass(frozen=True)
class Options:
    """Blocks and shifts.

    Attributes:
        block: steps of a block.
        shifts: blocks back, which the heads take in turn; 0 is the own block.
        own: every head sees its own block besides.
    """

    block: Size
    shifts: Sequence[SizeOrZero] = (0, 1)
    own: bool = False


def build(dims: Dims, options: Options) -> Reach:
    """One block per head."""
    shifts = in_turn("pattern 'blockwise': shifts", options.shifts, dims.heads)
    window = (max(options.shifts) + 1) * options.block
    check_memory("pattern 'blockwise'", window - 1, dims.memory)
    rule = Shifted(options.block * dims.tokens_per_step, shifts, options.own)
    return Reach(window, tokens_per_step=dims.tokens_per_step, rule=rule)


SPEC = Spec(
    id="A11", name="blockwise", axis="pattern", paper="Qiu et al. 2019, arXiv 1911.02972, section 3",
    summary="Each head sees one block of `block` steps: that of the token, or one `shifts` blocks back.",
    build=build, options=Options, example={"pattern": {"name": "blockwise", "block": 2, "shifts": [0, 1, 2]}},
    traits=Traits(
        causality="X",
        horizon="(largest shift + 1) block - 1",
        state="((largest shift + 1) block - 1) D",
        causal_form="a fixed number of blocks back in place of a permutation, which may map to the future; blocks "
        "count from the start of the episode; a token sees itself, and its own block while none lies so far back",
    ),
    offers=(Feature.REACH, Feature.HEAD_PATTERNS), needs=(Feature.PATTERNS,),
    formula="head h: softmax over s <= t with floor(s / block) = floor(t / block) - shifts[h], and s = t",
)  # fmt: skip
