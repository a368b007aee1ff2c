"""Nearest neighbors as a policy (Khandelwal et al. 2020, arXiv 1911.00172).

Axes: W width of features, A outputs of an action head, C neighbors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le
from jaxtyping import Float, Int
from torch import Tensor, nn

from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Spec, Traits
from rltransformers.policies.action_leaves import ActionLeaf
from rltransformers.policies.readouts.interface import Readout, StoreOptions

FINENESS = 1e-3  # distances closer than this share of the temperature count as equal


@dataclass(frozen=True)
class Options(StoreOptions):
    """Options of the nearest neighbors.

    Attributes:
        weight: of what the neighbors did; the rest is the model's.
        temperature: of the squared distances.
    """

    weight: Annotated[float, Ge(0), Le(1)] = 0.25
    temperature: Annotated[float, Gt(0), Le(1e6)] = 1.0


class NearestNeighbors(Readout):
    """p = weight p_knn + (1 - weight) p_model (equation 3), for every component of a discrete action by itself.

    Nothing is learned through the neighbors. As long as none is stored the model stands alone.
    """

    options: Options

    def __init__(self, width: int, leaves: Sequence[ActionLeaf], options: Options) -> None:
        if not all(leaf.countable for leaf in leaves):
            raise ConfigError(
                "readout 'knn' mixes probabilities of discrete actions, but the action space has a Box; "
                "use readout 'spalm' or leave readout out"
            )
        super().__init__(width, leaves, options, FINENESS * options.temperature)

    def forward(
        self, features: Float[Tensor, "*n W"], layer: nn.Linear, own: Int[Tensor, "*n"] | None = None
    ) -> Float[Tensor, "*n A"]:
        outputs, options = layer(features), self.options
        if options.weight == 0:
            return outputs
        found = self.store.nearest(features, options.neighbors, own)
        share = options.weight * found.exists.any(-1, keepdim=True)
        logits = -found.distance / options.temperature
        logits = logits.masked_fill(~found.exists, torch.finfo(logits.dtype).min)
        shares = logits.softmax(-1) * found.exists  # equation 2; 0 where nothing exists
        recorded = (shares[..., None, :] @ self.store.actions[found.index].to(shares.dtype)).squeeze(-2)
        parts = zip(self.leaves, self.split(outputs), self.split(recorded), strict=True)
        return torch.cat([leaf.mixed(output, other, share) for leaf, output, other in parts], -1)


SPEC = Spec(
    id="O1",
    name="knn",
    axis="readout",
    paper="Khandelwal et al. 2020, arXiv 1911.00172, equations 2 and 3",
    summary="Mixes the policy's probabilities with the actions recorded at the nearest features.",
    build=NearestNeighbors,
    options=Options,
    example={"readout": {"name": "knn", "neighbors": 3}},
    traits=Traits(
        horizon="-",
        state="0",
        causal_form="keys are the inputs of the action head, there those of the last feed-forward part; "
        "components of an action are mixed one by one; distances are rounded to a thousandth of the "
        "temperature",
    ),
    formula="p(a) = weight sum_i softmax_i(-|f - k_i|^2 / temperature) [a = a_i] + (1 - weight) p_model(a)",
)
