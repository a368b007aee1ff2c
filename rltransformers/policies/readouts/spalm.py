"""A gated memory of what was done in alike situations (SPALM, Yogatama et al. 2021, arXiv 2102.02557).

Axes: W width of features, A outputs of an action head, C neighbors, X rows of embeddings of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rltransformers.core.spec import Spec, Traits
from rltransformers.policies.action_leaves import ActionLeaf
from rltransformers.policies.readouts.interface import Readout, StoreOptions

RESOLUTION = 1e-3


@dataclass(frozen=True)
class Options(StoreOptions):
    """Options of the gated memory.

    Attributes:
        gate: one number for all of a feature, or one for each of its numbers.
    """

    gate: Literal["scalar", "vector"] = "scalar"


class GatedMemory(Readout):
    """m = sum_i softmax_i(y_i h) y_i with the embeddings y of the neighbors' actions; z = g h + (1 - g) m is read.

    The embedding of a class is its row of the last layer (tied, as in the paper); bits and components of a Box have
    rows that are learned. Keys are frozen, embeddings learn. As long as nothing is stored z is h.
    """

    learns = True
    options: Options

    def __init__(self, width: int, leaves: Sequence[ActionLeaf], options: Options) -> None:
        super().__init__(width, leaves, options, RESOLUTION)
        own = sum(leaf.outputs for leaf in self.leaves if not leaf.tied)
        self.values = nn.Parameter(torch.randn(own, width) * width**-0.5) if own else None
        self.gate = nn.Linear(width, 1 if options.gate == "scalar" else width)
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    def embeddings(self, layer: nn.Linear) -> Float[Tensor, "A W"]:
        """One row per output of the head: a stored action times these rows is its embedding."""
        rows, used = [], 0
        for leaf, tied in zip(self.leaves, layer.weight.split([leaf.outputs for leaf in self.leaves]), strict=True):
            if leaf.tied or self.values is None:
                rows.append(tied)
            else:
                rows.append(self.values[used : used + leaf.outputs])
                used += leaf.outputs
        return torch.cat(rows)

    def forward(
        self, features: Float[Tensor, "*n W"], layer: nn.Linear, own: Int[Tensor, "*n"] | None = None
    ) -> Float[Tensor, "*n A"]:
        found = self.store.nearest(features, self.options.neighbors, own)
        y = self.store.actions[found.index].to(features.dtype) @ self.embeddings(layer)
        logits = (y @ features[..., None]).squeeze(-1)
        logits = logits.masked_fill(~found.exists, torch.finfo(logits.dtype).min)
        memory = (logits.softmax(-1)[..., None, :] @ y).squeeze(-2)
        share = (1 - self.gate(features).sigmoid()) * found.exists.any(-1, keepdim=True)
        return layer(features + share * (memory - features))


SPEC = Spec(
    id="O2",
    name="spalm",
    axis="readout",
    paper="Yogatama et al. 2021, arXiv 2102.02557, section 3.2",
    summary="Blends the input of the action head with a mean of embedded actions recorded at the nearest "
    "features, by a gate.",
    build=GatedMemory,
    options=Options,
    example={"readout": {"name": "spalm", "neighbors": 3}},
    traits=Traits(
        horizon="-",
        state="0",
        causal_form="actions in place of next tokens; the gate has a bias; keys are features of the policy itself, "
        "there of another model that stays as it is",
    ),
    formula="z = g h + (1 - g) sum_i softmax_i(y_i h) y_i, g = sigmoid(w h + b), y_i embeds the action of the i-th of "
    "the nearest features",
)
