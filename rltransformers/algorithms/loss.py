"""What every loss of an online algorithm has."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Loss:
    """The loss to minimize, the only scalar with a gradient, and the auxiliary losses of the network by name.

    The losses of algorithms add what they are made of, scalars for the log.
    """

    total: Tensor
    auxiliary: Mapping[str, Tensor] = field(default_factory=dict, kw_only=True)
