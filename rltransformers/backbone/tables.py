"""Tables that a network computes from its weights and sizes alone, kept for as long as the weights stay the same."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from rltransformers.core.places import places_of


class Tables:
    """Tables of acting that follow the weights.

    Args:
        network: whose tables they are; its first parameter tells type and device.
        sources: the modules whose weights and buffers the tables depend on.
        compute: gives the tables under today's weights, by place.
    """

    def __init__(
        self, network: nn.Module, sources: Sequence[nn.Module], compute: Callable[[], dict[str, Tensor]]
    ) -> None:
        self.compute = compute
        self._places = places_of(*sources)
        self._weightless = bool(sources) and not self._places
        if self._weightless:  # then a weight tells type and device, whatever its numbers are
            places = places_of(network)
            self._places = [next(place for place in places if isinstance(place[0][place[1]], nn.Parameter))]
        self._copies: list[Tensor] = []
        self._tables: dict[str, Tensor] = {}

    def current(self) -> dict[str, Tensor]:
        """The tables, the same dictionary as before while no weight changed.

        All sources are compared with what they were, so that no way of changing a weight goes unnoticed.
        """
        sources = [tensor for holder, name in self._places if (tensor := holder[name]) is not None]
        if self._weightless:
            sources = [sources[0].flatten()[:0]]
        if sources and not (self._copies and all(map(same, self._copies, sources))):
            with torch.no_grad(), torch.inference_mode(False):
                self._copies = [source.detach().clone() for source in sources]
                self._tables = {name: table.contiguous() for name, table in self.compute().items()}
        return self._tables


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are of one kind and hold the same numbers."""
    return one.dtype == other.dtype and one.device == other.device and torch.equal(one, other)
