"""The state of a backbone, and tables of its weights for acting. Axes: B batch, S slots of a ring."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rltransformers.core.described import size_of
from rltransformers.core.errors import ConfigError
from rltransformers.core.places import places_of
from rltransformers.functional.windows import match_axes
from rltransformers.memory.interface import RINGS
from rltransformers.mixers.interface import LayerState


@dataclass(frozen=True)
class State:
    """Everything a backbone carries from call to call.

    Attributes:
        tensors: "position" [B] (episode position of the last token, -1 before the first) and, per layer,
            "<layer>.<name>" tensors whose shapes are known before the first call. A state for acting has a "clock" [B],
            tokens that were written to its rings, the same number for all streams.
    """

    tensors: dict[str, Tensor]

    def __repr__(self) -> str:
        form = "acting" if self.acts else "training"
        return f"State({form}, batch {self.batch_size}, {len(self.tensors)} tensors, {size_of(self.tensors.values())})"

    @property
    def batch_size(self) -> int:
        return self.tensors["position"].shape[0]

    @property
    def acts(self) -> bool:
        return "clock" in self.tensors

    def map(self, function: Callable[[Tensor], Tensor]) -> "State":
        """``function`` of every tensor."""
        return State({name: function(value) for name, value in self.tensors.items()})

    def __getitem__(self, index: Tensor | slice | Sequence[int]) -> "State":
        rows = self.map(lambda value: value[index])
        if rows.tensors["position"].dim() != 1:
            raise ConfigError(
                f"a state is indexed by rows and stays a batch: state[[0]] or state[0:1], not state[{index}]"
            )
        return rows

    def detach(self) -> "State":
        return self.map(Tensor.detach)

    def clone(self) -> "State":
        return self.map(Tensor.clone)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "State":
        """Moved; ``dtype`` applies to floating point tensors."""
        return self.map(
            lambda value: value.to(device=device, dtype=dtype if value.is_floating_point() and dtype else value.dtype)
        )

    def where(self, mask: Tensor, other: "State") -> "State":
        """Rows of ``other`` where ``mask`` [B] is True; ConfigError for other forms or another number of streams."""
        check_alike([self, other])
        if not tuple(mask.shape) == (self.batch_size,) == (other.batch_size,):
            raise ConfigError(
                f"the mask has shape {tuple(mask.shape)}, the states have {self.batch_size} and {other.batch_size} "
                "streams; pass one flag per stream"
            )
        other = other.at_clock_of(self)
        return State(
            {
                name: torch.where(match_axes(mask, value), other.tensors[name], value)
                for name, value in self.tensors.items()
            }
        )

    @staticmethod
    def cat(states: Sequence["State"]) -> "State":
        """Batch rows of all states, in order; ConfigError if there is none, or if they have different forms."""
        if not states:
            raise ConfigError("there is no state to join; pass at least one")
        check_alike(states)
        alike = [state.at_clock_of(states[0]) for state in states]
        return State({name: torch.cat([state.tensors[name] for state in alike]) for name in states[0].tensors})

    def at_clock_of(self, other: "State") -> "State":
        """The same state with its rings turned so that its clock shows what the clock of ``other`` shows."""
        if not self.acts or not self.batch_size or not other.batch_size:
            return self
        ahead = int(other.tensors["clock"][0] - self.tensors["clock"][0])
        if ahead == 0:
            return self
        turned = {
            name: value.roll(ahead % value.shape[1], 1) if name.rpartition(".")[2] in RINGS.values() else value
            for name, value in self.tensors.items()
        }
        return State(turned | {"clock": self.tensors["clock"] + ahead})

    def difference(self, expected: Mapping[str, tuple[int, ...]]) -> str:
        """The first tensor that has not the ``expected`` shape without its batch axis, in words."""
        for name, shape in expected.items():
            if name not in self.tensors:
                return f"it lacks {name}"
            if self.tensors[name].shape[1:] != shape:
                return f"{name} has shape {tuple(self.tensors[name].shape)}, not {(self.batch_size, *shape)}"
        return f"it holds {next(name for name in self.tensors if name not in expected)}"

    def layer(self, name: str) -> LayerState:
        """Tensors of one layer by their own names."""
        return part_of(name, self.tensors)


def check_alike(states: Sequence[State]) -> None:
    """Raise unless all states have entries of the same names."""
    for state in states[1:]:
        if different := sorted(state.tensors.keys() ^ states[0].tensors.keys()):
            raise ConfigError(
                f"states of two forms cannot be joined: only one of them has {different[0]}; bring both to one form "
                "with with_cache or without_cache of the backbone"
            )


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under names with a prefix and a dot in front."""
    return {f"{prefix}.{name}": value for name, value in tensors.items()}


def part_of(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those that ``prefixed`` named, by their own names."""
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


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
        pairs = zip(self._copies, sources, strict=False)
        same = bool(self._copies) and all(
            one.dtype == other.dtype and one.device == other.device and torch.equal(one, other) for one, other in pairs
        )
        if sources and not same:
            autocast = torch.autocast(sources[0].device.type, enabled=False)  # they outlast the block of a caller
            with torch.no_grad(), torch.inference_mode(False), autocast:
                self._copies = [source.detach().clone() for source in sources]
                self._tables = {name: table.contiguous() for name, table in self.compute().items()}
        return self._tables
