"""The state of a backbone: a record of tensors, batch first, passed in and returned.

Axes: B batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class State:
    """Everything a backbone carries from call to call.

    Attributes:
        tensors: "position" [B] (episode position of the last token, -1 before the first) and, per layer,
            "<layer>.<name>" tensors whose shapes are known before the first call.
    """

    tensors: dict[str, Tensor]

    @property
    def batch_size(self) -> int:
        """B."""
        return len(self.tensors["position"])

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
        """Rows of ``other`` where ``mask`` [B] is True."""
        return State(
            {
                name: torch.where(mask.view(-1, *[1] * (value.dim() - 1)), other.tensors[name], value)
                for name, value in self.tensors.items()
            }
        )

    def put(self, rows: Tensor, other: "State") -> "State":
        """With the batch rows of ``other`` at the indices ``rows``."""
        return State({name: value.index_copy(0, rows, other.tensors[name]) for name, value in self.tensors.items()})

    @staticmethod
    def cat(states: Sequence["State"]) -> "State":
        """Batch rows of all states, in order."""
        return State({name: torch.cat([state.tensors[name] for state in states]) for name in states[0].tensors})

    def layer(self, name: str) -> dict[str, Tensor]:
        """Tensors of one layer."""
        prefix = f"{name}."
        return {key.removeprefix(prefix): value for key, value in self.tensors.items() if key.startswith(prefix)}
