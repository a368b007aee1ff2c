"""Acting of Decision Transformers that keep no memory of the network: the newest steps are computed again."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rltransformers.conformance.adapters import sequences

EXEMPT = sequences.OFFLINE | {
    "changed weights take effect": "nothing is cached: every decision computes its window again",
    "reset leaks nothing": "the caller holds the steps, and an episode begins without any",
}
"""Checks that do not apply to policies whose caller holds the newest steps."""


class Recomputing:
    """Keep the newest steps and compute their window again for every decision. State: steps [B, t, D].

    Args:
        context: steps of a window.
        decide: outputs [B, A] of the newest of n <= ``context`` steps [B, n, D], which began at the given step of the
            episode; what the last of them says of the action is not to be read.
    """

    def __init__(self, context: int, decide: Callable[[Tensor, int], Tensor]) -> None:
        self.context, self.decide = context, decide

    def reset(self, batch: int) -> Tensor:
        return torch.zeros(batch, 0, sequences.INPUTS)

    def step(self, inputs: Float[Tensor, "B D"], first: Bool[Tensor, " B"], state: Tensor) -> tuple[Tensor, Tensor]:
        steps = inputs[:, None] if bool(first.all()) else torch.cat([state, inputs[:, None]], 1)
        start = max(0, steps.shape[1] - self.context)
        return self.decide(steps[:, start:], start), steps

    def lookback(self, step: int) -> int:
        return min(step + 1, self.context)


class MaskedWindows(Recomputing, ABC):
    """Windows with padding on the left, under an attention mask. Inputs: see ``sequences``."""

    inputs = sequences.INPUTS
    padding = "left"

    @abstractmethod
    def masked_outputs(self, inputs: Tensor, valid: Tensor, start: int) -> Float[Tensor, "B T A"]:
        """Outputs for steps [B, T, D], of which the first is step ``start``, where they are ``valid`` [B, T]."""

    def segment(self, inputs: Float[Tensor, "B T D"], first: Bool[Tensor, "B T"], state: Any) -> Float[Tensor, "B T A"]:
        return self.window(inputs, 0)

    def window(self, inputs: Float[Tensor, "B T D"], start: int) -> Float[Tensor, "B T A"]:
        return self.masked_outputs(inputs, torch.ones(inputs.shape[:2], dtype=torch.bool), start)

    def pad(self, inputs: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"]) -> Float[Tensor, "B T A"]:
        return self.masked_outputs(inputs, valid, 0)
