"""Value residual: every layer reads its own values together with those of the first layer (Zhou et al. 2024).

Axes: B batch, T tokens, N key rows of a group, R rows of all groups one after the other, E numbers of a key row, V
those of them that are values.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn

from rltransformers.attention.roles import Part
from rltransformers.core.spec import Feature, Refusal, Spec, Traits
from rltransformers.functional.keys import Past
from rltransformers.mixers.interface import Dims

Share = Annotated[float, Ge(-10), Le(10)]


@dataclass(frozen=True)
class Options:
    """Shares at the start.

    Attributes:
        own: initial share of the values of the layer itself.
        first: initial share of the values of the first layer.
    """

    own: Share = 0.5
    first: Share = 0.5


class ValueResidual(Part):
    """``own v + first v_1``; the first layer has its values alone."""

    mixes_values = True

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        self.is_first = dims.layer == 0
        if not self.is_first:
            self.own = nn.Parameter(torch.full((), options.own))
            self.first = nn.Parameter(torch.full((), options.first))

    def mixed_values(self, past: Past, below: Tensor | None, width: int) -> tuple[Past, Float[Tensor, "B R V"]]:
        """A row of every layer stands for the same token, so that rows of the memory need nothing more."""
        split = [group.rows.split_with_sizes([group.rows.shape[-1] - width, width], -1) for group in past]
        if self.is_first:
            values = [v.flatten(1, -2) for _, v in split]
            return past, values[0] if len(values) == 1 else torch.cat(values, 1)
        assert below is not None  # the first layer hands its values on
        counts = [v.shape[1:-1].numel() for _, v in split]
        firsts = below.split_with_sizes(counts, 1) if len(past) > 1 else (below,)
        groups = []
        for group, (keys, v), first in zip(past, split, firsts, strict=True):
            mixed = self.own * v + self.first * first.reshape(v.shape)
            groups.append(replace(group, rows=torch.cat([keys, mixed.to(v.dtype)], -1)))
        return tuple(groups), below


SPEC = Spec(
    id="N27", name="value_residual", axis="prior", paper="Zhou et al. 2024, arXiv 2410.17897, section 3.3",
    summary="The values of a layer are a learned mixture of its own and those of the first layer.",
    build=ValueResidual, options=Options,
    traits=Traits(
        family="EXPL",
        causal_form="both shares start at 1/2, as the authors' code fixes them",
    ),
    offers=(Feature.FIRST_VALUES, Feature.MIXED_LAYERS), needs=(Feature.VALUES,),
    refuses=(
        Refusal(Feature.MIXED_KEYS, "the values of the first layer must stand in the same rows"),
        Refusal(Feature.HALTING, "a token that halts hands nothing on to the layers above"),
        Refusal(Feature.LATENT, "the values of a row are made at reading, by every layer in its own way"),
        Refusal(Feature.STORE, "the layer with the store has rows that the first one does not keep"),
    ),
    formula="v_s <- l_1 v_s + l_2 v^1_s in all layers but the first, v^1 its values",
)  # fmt: skip
