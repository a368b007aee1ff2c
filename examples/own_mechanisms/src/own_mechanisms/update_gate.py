"""A gate between the stream and what a submodule adds: the update gate of a GRU, without the rest of it."""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from rltransformers.mechanisms import Gate, Gated, Spec, Traits


@dataclass(frozen=True)
class Options:
    """Options of the gate.

    Attributes:
        bias: the larger, the nearer to the identity the stack starts.
    """

    bias: Annotated[float, Ge(-100), Le(100)] = 1.0


class UpdateGate(Gate):
    """``(1 - z) x + z y``, ``z = sigmoid(W x + U y - b)``."""

    def __init__(self, width: int, bias: float) -> None:
        super().__init__()
        self.of_stream = nn.Linear(width, width, bias=False)
        self.of_output = nn.Linear(width, width, bias=False)
        self.bias = nn.Parameter(torch.full((width,), bias))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gated stream and how far the gate is open."""
        z = torch.sigmoid(self.of_stream(x) + self.of_output(y) - self.bias)
        return x + z * (y - x), z


def build(width: int, options: Options) -> Gated:
    """The gate of one submodule, whose input is normalized."""
    return Gated(width, UpdateGate(width, options.bias), reordered=True)


SPEC = Spec(
    name="update_gate",
    axis="residual",
    paper="Cho et al. 2014, arXiv 1406.1078, equation 7",
    summary="A gate, read from the stream and from the submodule, shares 1 between the two.",
    build=build,
    options=Options,
    traits=Traits(causality="N/A"),
    formula="(1 - z) x + z y, z = sigmoid(W x + U y - b)",
)


def twin(module: Gated, x: Tensor, y: Tensor) -> Tensor:
    """Compute the stream [t, D] behind a submodule as the formula reads, number by number."""
    gate, rows = module.gate, []
    assert isinstance(gate, UpdateGate)
    for before, added in zip(x, y, strict=True):
        numbers = []
        for place in range(len(before)):
            positive = added.clamp(min=0)  # as in GTrXL, what a submodule adds is not negative
            at = (gate.of_stream.weight[place] * before).sum() + (gate.of_output.weight[place] * positive).sum()
            z = 1 / (1 + torch.exp(gate.bias[place] - at))
            numbers.append((1 - z) * before[place] + z * positive[place])
        rows.append(torch.stack(numbers))
    return torch.stack(rows)
