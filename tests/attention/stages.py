"""What twins of memories are made from, written token by token."""

from typing import Any

import torch
from torch import Tensor

State = dict[str, Tensor]


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def softplus(x: Tensor) -> Tensor:
    return torch.log(1 + torch.exp(x))


def tanh(x: Tensor) -> Tensor:
    return (torch.exp(2 * x) - 1) / (torch.exp(2 * x) + 1)


def unit_length(x: Tensor) -> Tensor:
    return x / torch.sqrt(x @ x + 1e-6)


def short_convolution(x: Tensor, conv: Any) -> tuple[Tensor, Tensor]:
    """The rows of an episode behind a short convolution, and the rows that it keeps."""
    taps, out = 0 if conv.kernel is None else conv.kernel.shape[1], []
    for t, row in enumerate(x):
        total = torch.zeros_like(row) if taps else row
        for lag in range(min(t + 1, taps)):
            total = total + conv.kernel[:, lag] * x[t - lag]
        total = total if conv.bias is None else total + conv.bias
        out.append(total * sigmoid(total) if conv.silu else total)
    return torch.stack(out), torch.cat([x.new_zeros(max(taps - 1, 0), x.shape[1]), x])[len(x) :]


def gated_output(heads: list[Tensor], row: Tensor, stage: Any) -> Tensor:
    """The output of one token: heads, divided by their root mean square if there are gains, times a gate, projected."""
    if stage.gain is not None:
        heads = [head / torch.sqrt((head @ head) / len(head) + 1e-5) * stage.gain for head in heads]
    rows = torch.cat(heads)
    if stage.gate is not None:
        gate = stage.gate(row)
        rows = rows * sigmoid(gate) * (gate if stage.act is torch.nn.functional.silu else 1)
    out: Tensor = stage.out(rows)
    return out
