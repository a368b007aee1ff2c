"""Input of a Decision Transformer at one step, as numbers: an observation, a return-to-go, and the action then taken.

Acting learns of the action only after its decision: where training agrees with it, no decision saw its own action.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

OBSERVATION, ACTION = 3, 2
INPUTS = OBSERVATION + 1 + ACTION
OFFLINE = {
    "first ratio is 1": "offline learning compares no probabilities",
    "bootstraps from the right memory": "returns come from the data: nothing is bootstrapped",
}
"""Checks that do not apply to learning from recorded episodes."""


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
