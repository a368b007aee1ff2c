"""A backbone that finds elements to look at in the tokens themselves, so that every config takes the same call.

Axes: B batch, T tokens, N elements, D model width.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rltransformers.backbone import Backbone, BackboneConfig, State
from rltransformers.functional.call import Context

ELEMENTS = 4
LEAST = 153.5 / 512
"""An element exists where its entry of the token is larger; of normal tokens one in seven has no element at all.

The number lies in the middle between two numbers of bfloat16, so that rounding a token creates and removes no element.
"""


class Looking(Backbone):
    """Its layers read ``elements_of`` every token."""

    def forward(self, x: Tensor, *arguments: Any, **keywords: Any) -> tuple[Tensor, State]:
        return super().forward(x, *arguments, context=elements_of(x), **keywords)

    def step(self, x: Tensor, *arguments: Any, context: Context | None = None, **keywords: Any) -> tuple[Tensor, State]:
        return super().step(x, *arguments, context=context or elements_of(x), **keywords)


def elements_of(x: Float[Tensor, "B T D"]) -> Context:
    """Elements that depend on every entry of their token, and on no other token."""
    rows = [torch.tanh(x.roll(place + 1, -1) * (place + 1) / 2) for place in range(ELEMENTS)]
    return Context(torch.stack(rows, 2), x[..., :ELEMENTS].float() > LEAST)


def backbone_of(config: BackboneConfig) -> Backbone:
    """The backbone of a config, with elements to look at where it reads any."""
    return (Looking if config.reads_context else Backbone)(config)
