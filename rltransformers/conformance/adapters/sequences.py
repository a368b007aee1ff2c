"""Input of a Decision Transformer at one step, as numbers: an observation, a return-to-go, and the action then taken.

The training pass holds the action of a step, acting learns of it only after its decision: where both agree, no decision
saw its own action.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

OBSERVATION, ACTION = 3, 2
INPUTS = OBSERVATION + 1 + ACTION
NO_RATIO = "offline learning compares no probabilities"
NO_BOOTSTRAP = "returns come from the data: nothing is bootstrapped"
OFFLINE = {"first ratio is 1": NO_RATIO, "bootstraps from the right memory": NO_BOOTSTRAP}
"""Checks that do not apply to learning from recorded episodes."""
RECOMPUTED = OFFLINE | {
    "changed weights take effect": "nothing is cached: every decision computes its window again",
    "reset leaks nothing": "the caller holds the steps, and an episode begins without any",
}
"""Nor to policies whose acting keeps nothing but the newest steps, which the caller holds."""


def observations(inputs: Float[Tensor, "*n D"]) -> Float[Tensor, "*n 3"]:
    """Three numbers."""
    return inputs[..., :OBSERVATION]


def returns_to_go(inputs: Float[Tensor, "*n D"]) -> Float[Tensor, "*n"]:
    """The return asked for from this step on."""
    return inputs[..., OBSERVATION]


def actions(inputs: Float[Tensor, "*n D"]) -> Float[Tensor, "*n 2"]:
    """Inside of the bounds -1 and 1."""
    return inputs[..., OBSERVATION + 1 :].tanh()


def timesteps(valid: Bool[Tensor, "B T"], start: int = 0) -> Int[Tensor, "B T"]:
    """Numbers of the steps inside their episode, which begins at the first valid one or ``start`` steps before; 0 in
    padding.
    """
    return torch.where(valid, valid.long().cumsum(1) - 1 + start, 0)


class Recomputing:
    """Acting that keeps the newest steps and computes their window again for every decision. State: steps [B, t, D].

    Args:
        context: steps of a window.
        decide: outputs [B, A] of the newest of n <= ``context`` steps [B, n, D], which began at the given step of the
            episode; what the last of them says of the action is not to be read.
    """

    def __init__(self, context: int, decide: Callable[[Tensor, int], Tensor]) -> None:
        self.context, self.decide = context, decide

    def reset(self, batch: int) -> Tensor:
        return torch.zeros(batch, 0, INPUTS)

    def step(self, inputs: Float[Tensor, "B D"], first: Bool[Tensor, " B"], state: Tensor) -> tuple[Tensor, Tensor]:
        steps = inputs[:, None] if bool(first.all()) else torch.cat([state, inputs[:, None]], 1)
        start = max(0, steps.shape[1] - self.context)
        return self.decide(steps[:, start:], start), steps

    def lookback(self, step: int) -> int:
        return min(step + 1, self.context)
