"""The state of a backbone: a record of tensors, batch first, passed in and returned.

Axes: B batch, S slots of a ring.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rltransformers.core.described import size_of
from rltransformers.core.errors import ConfigError
from rltransformers.memory.interface import RINGS


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
        """B."""
        return self.tensors["position"].shape[0]

    @property
    def acts(self) -> bool:
        """Whether this is the form for acting."""
        return "clock" in self.tensors

    def map(self, function: Callable[[Tensor], Tensor]) -> "State":
        """``function`` of every tensor."""
        return State({name: function(value) for name, value in self.tensors.items()})

    def __getitem__(self, index: Tensor | slice | Sequence[int]) -> "State":
        """Chosen batch rows."""
        return self.map(lambda value: value[index])

    def detach(self) -> "State":
        """Without gradient history."""
        return self.map(Tensor.detach)

    def clone(self) -> "State":
        """A copy."""
        return self.map(Tensor.clone)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "State":
        """Moved; ``dtype`` applies to floating point tensors."""
        return self.map(
            lambda value: value.to(device=device, dtype=dtype if value.is_floating_point() and dtype else value.dtype)
        )

    def where(self, mask: Tensor, other: "State") -> "State":
        """Rows of ``other`` where ``mask`` [B] is True.

        Raises:
            ConfigError: the two have different forms, or another number of streams than the mask.
        """
        check_alike([self, other])
        if not tuple(mask.shape) == (self.batch_size,) == (other.batch_size,):
            raise ConfigError(
                f"the mask has shape {tuple(mask.shape)}, the states have {self.batch_size} and {other.batch_size} "
                "streams; pass one flag per stream"
            )
        other = other.at_clock_of(self)
        return State(
            {
                name: torch.where(mask.view(-1, *[1] * (value.dim() - 1)), other.tensors[name], value)
                for name, value in self.tensors.items()
            }
        )

    @staticmethod
    def cat(states: Sequence["State"]) -> "State":
        """Batch rows of all states, in order.

        Raises:
            ConfigError: there is no state, or they have different forms.
        """
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

    def layer(self, name: str) -> dict[str, Tensor]:
        """Tensors of one layer by their own names."""
        start = f"{name}."
        return {key.removeprefix(start): value for key, value in self.tensors.items() if key.startswith(start)}


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
