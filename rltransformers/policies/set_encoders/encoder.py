"""An encoder of the elements of an observation: tokens of elements, the layers of a paper, pooling.

Axes: ... any leading axes, usually [B, T], N elements, W width.
"""

import math
from collections.abc import Mapping

from torch import Tensor, nn

from rltransformers.backbone.rules import nearest_divisors
from rltransformers.core.errors import ConfigError
from rltransformers.core.spaces import Space
from rltransformers.core.spec import Choice
from rltransformers.policies.set_encoders.elements import Elements
from rltransformers.policies.set_encoders.interface import Encoded, EncoderOptions, Pooling, check_table


def build_encoder(choice: Choice, space: Space, width: int) -> "SetEncoder":
    """The encoder that a choice says, for observations of a space, with rows of ``width`` numbers.

    Raises:
        ConfigError: heads do not divide the width, no leaf holds elements, or the options do not fit their number.
    """
    options: EncoderOptions = choice.options
    if width % options.heads:
        raise ConfigError(
            f"encoder {choice.name!r}: heads ({options.heads}) must divide width ({width}); nearest that do: "
            f"{nearest_divisors(width, options.heads)}"
        )
    inner = options.ff_width or 4 * width
    check_table(f"a feed-forward layer of encoder {choice.name!r}", width, inner, "lower ff_width or the width")
    elements = Elements(space, width, options)
    return SetEncoder(elements, choice.build(elements.count, width), Pooling(width, options.heads, inner))


class SetEncoder(nn.Module):
    """Encodes the elements of every observation; ``stack`` makes rows [B, N, W] of tokens and existence [B, N]."""

    def __init__(self, elements: Elements, stack: nn.Module, pooling: Pooling) -> None:
        super().__init__()
        self.elements, self.stack, self.pooling = elements, stack, pooling

    def forward(self, leaves: Mapping[str, Tensor]) -> Encoded:
        """From leaves [..., leaf shape] by path."""
        tokens, exists = self.elements(leaves)
        lead, (count, width) = tokens.shape[:-2], tokens.shape[-2:]
        flat = exists.reshape(math.prod(lead), count)
        rows = self.stack(tokens.reshape(math.prod(lead), count, width), flat).masked_fill(~flat[..., None], 0.0)
        pooled = self.pooling(rows, flat)
        return Encoded(rows.reshape(*lead, count, width), exists, pooled.reshape(*lead, width))
