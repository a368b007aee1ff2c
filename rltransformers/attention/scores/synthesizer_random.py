"""Random Synthesizer: one logit per head and distance, whatever the tokens are (Tay et al. 2021).

Axes: H heads, L distances, N distances that have a logit of their own, r rank.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rltransformers.attention.layer import Attention
from rltransformers.attention.plan import Plan
from rltransformers.attention.scores.interface import EXPLICIT, ValuesOnly, check_value_heads
from rltransformers.core.spec import Size, Spec, Traits
from rltransformers.functional.draws import DrawSeed, fill, layer_generator, seeded_normal
from rltransformers.mixers.interface import Dims


class RandomSynthesizer(ValuesOnly):
    """``r[h, d]``, learned or as drawn; of a ``rank`` it is the product of a factor of heads and one of distances.

    Logits begin with variance 1, whatever the rank.
    """

    scores_distances = True

    def __init__(self, dims: Dims, distances: int, rank: int | None, learned: bool, seed: int) -> None:
        super().__init__(dims)
        self.names = ("entries",) if rank is None else ("of_heads", "of_places")
        shapes = [(dims.heads, distances)] if rank is None else [(dims.heads, rank), (rank, distances)]
        generator, scale = layer_generator(seed, dims.layer), (rank or 1) ** -0.25
        for name, shape in zip(self.names, shapes, strict=True):
            table = torch.empty(shape)
            fill(table, partial(seeded_normal, shape, generator, table.dtype)).mul_(scale)
            if learned:
                self.register_parameter(name, nn.Parameter(table))
            else:
                self.register_buffer(name, table)

    def table(self) -> Float[Tensor, "H N"]:
        first, *second = (getattr(self, name) for name in self.names)
        found: Tensor = first @ second[0] if second else first
        return found

    def of_distances(self, distance: Int[Tensor, " L"], like: Tensor) -> Float[Tensor, "L H"]:
        """Farther distances than the table has share its last logit."""
        table = self.table()
        return table[:, distance.clamp(max=table.shape[1] - 1)].T


@dataclass(frozen=True)
class Options:
    """Options of the random Synthesizer.

    Attributes:
        distances: largest distance N in tokens; default: all that the memory lets a token see.
        rank: of a factorized table of logits; None for a full table.
        learned: whether the logits learn or stay as they are drawn, from N(0, 1).
        seed: of the random logits.
    """

    distances: Size | None = None
    rank: Size | None = None
    learned: bool = True
    seed: DrawSeed = 0


def build(dims: Dims, plan: Plan, options: Options) -> Attention:
    """Build attention by a table of logits; ``dims.layer`` makes those of every layer different."""
    check_value_heads("synthesizer_random", dims)
    distances = options.distances or dims.tokens_in_view
    score = RandomSynthesizer(dims, distances, options.rank, options.learned, options.seed)
    return Attention(dims, replace(plan, score=score))


SPEC = Spec(
    id="B10", name="synthesizer_random", axis="mixer", paper="Tay et al. 2021, arXiv 2005.00743, sections 3.2 and 3.4",
    summary="Attention weights that do not depend on the tokens: a logit per head and distance, learned or random.",
    build=build, options=Options,
    traits=Traits(
        causality="C*",
        family="VAL",
        state="memory D (training), memory heads Dv more (acting)",
        causal_form="a logit belongs to a distance, there to a pair of places in a sequence of fixed length; the "
        "factors are of heads and distances, there of places and places",
    ),
    offers=EXPLICIT,
    formula="o_t = sum_s softmax_s(r[h, d]) v_s, r = R1 R2 where it has a rank",
)  # fmt: skip
