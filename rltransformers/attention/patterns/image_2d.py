"""Image Transformer, local in two dimensions: rectangles of a grid that holds the episode (Parmar et al. 2018)."""

from dataclasses import dataclass

from jaxtyping import Bool, Int
from torch import Tensor

from rltransformers.attention.reach import Reach, Rule, check_memory
from rltransformers.core.spec import Feature, Size, SizeOrZero, Spec, Traits
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Rectangle(Rule):
    """Keys in the block of the query, its ``rows`` and ``columns``, and those ``above`` and ``beside`` it, on a grid.

    A row of the grid has ``width`` tokens.
    """

    width: int
    rows: int
    columns: int
    above: int
    beside: int

    def allowed(self, i: Int[Tensor, "B 1 T 1"], distance: Int[Tensor, "b h T N"]) -> Bool[Tensor, "c h T N"]:
        j = i - distance
        top = i // self.width // self.rows * self.rows
        left = i % self.width // self.columns * self.columns
        column = j % self.width
        inside = (column >= left - self.beside) & (column < left + self.columns + self.beside)
        return inside & (j // self.width >= top - self.above)


@dataclass(frozen=True)
class Options:
    """The grid and the rectangles on it.

    Attributes:
        width: tokens of a row of the grid; with several tokens per step and as many columns, rows are steps.
        rows, columns: of a block of queries.
        above: rows above the block that its queries see.
        beside: columns on either side of the block that its queries see.
    """

    width: Size
    rows: Size
    columns: Size
    above: SizeOrZero = 0
    beside: SizeOrZero = 0


def build(dims: Dims, options: Options) -> Reach:
    """The token's block and what lies around it, as far as it comes before the token row by row."""
    across = min(options.width, options.columns + options.beside) - 1
    back = (options.rows + options.above - 1) * options.width + across
    steps = -(-back // dims.tokens_per_step)
    check_memory("pattern 'image_2d'", steps, dims.memory)
    rule = Rectangle(options.width, options.rows, options.columns, options.above, options.beside)
    return Reach(steps + 1, tokens_per_step=dims.tokens_per_step, rule=rule)


SPEC = Spec(
    id="A7", name="image_2d", axis="pattern",
    paper="Parmar et al. 2018, arXiv 1802.05751, section 3.3, 2D local attention",
    summary="The episode is written on a grid; a token sees the rectangle around its block, as far as it came before.",
    build=build, options=Options,
    example={"memory": 11, "pattern": {"name": "image_2d", "width": 3, "rows": 2, "columns": 2, "above": 1}},
    traits=Traits(
        horizon="(rows + above - 1) width + columns + beside - 1",
        state="((rows + above - 1) width + columns + beside - 1) D",
        causal_form="tokens come row by row, there block by block, so a token sees no later block beside its own;"
                    " the grid starts with the episode",
    ),
    offers=(Feature.REACH,), needs=(Feature.PATTERNS,),
    formula="softmax over s <= t in rows >= R - above and columns C - beside ... C + columns + beside - 1, "
    "(R, C) the first row and column of t's block",
)  # fmt: skip
