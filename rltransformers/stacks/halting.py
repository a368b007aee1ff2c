"""A universal layer with adaptive computation time. Axes: B batch, T tokens, D model width."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.functional.call import EVERY, Call, chosen
from rltransformers.functional.modules import masked_mean
from rltransformers.mixers.interface import LayerState
from rltransformers.stacks.plain import Plain


@dataclass(frozen=True)
class Halting:
    """Decisions of ACT so far; they start at zero.

    Attributes:
        total: sum of halting probabilities of the steps taken.
        steps: N, steps taken.
        remainder: R, weight of the last step.
        halted: the token takes no further step.
    """

    total: Float[Tensor, "B T"]
    steps: Float[Tensor, "B T"]
    remainder: Float[Tensor, "B T"]
    halted: Bool[Tensor, "B T"]

    @staticmethod
    def start(like: Float[Tensor, "B T"]) -> "Halting":
        zero = torch.zeros_like(like)
        return Halting(zero, zero, zero, torch.zeros_like(like, dtype=torch.bool))

    def step(
        self, probability: Float[Tensor, "B T"], last: bool, epsilon: float
    ) -> tuple[Float[Tensor, "B T"], "Halting"]:
        """Weight of this step's state, 0 for halted tokens, and what is decided after it.

        Graves 2016 (arXiv 1603.08983, equations 5 to 8): the step that would carry the total above 1 - epsilon, or the
        last one allowed, takes the remainder, so weights sum to 1. The listing of the Universal Transformer differs: it
        reads p_n before the n-th application, blends each state into the sum of those before, and a token that is still
        running after the last step keeps what it has.
        """
        running = ~self.halted
        ends = running & ((self.total + probability >= 1 - epsilon) | last)
        left = 1 - self.total
        weight = torch.where(ends, left, probability) * running
        after = Halting(
            torch.where(running & ~ends, self.total + probability, self.total),
            self.steps + running,
            torch.where(ends, left, self.remainder),
            self.halted | ends,
        )
        return weight, after

    def ponder(self) -> Float[Tensor, "B T"]:
        """Ponder cost N + R per token (equation 11); only R carries gradient."""
        return self.steps + self.remainder


@dataclass(frozen=True)
class AdaptiveTime(Plain):
    """One layer; a halted token keeps its state as key for the others (Dehghani et al. 2019, appendix A.8).

    Attributes:
        halt: reads the halting probability from the stream after an application.
        epsilon: a token halts when its probabilities add up to 1 - epsilon.
    """

    halt: nn.Linear
    epsilon: float

    def run(self, x: Tensor, states: Sequence[LayerState], call: Call) -> tuple[Tensor, list[LayerState]]:
        total = torch.zeros_like(x)
        halting = Halting.start(x[..., 0])
        after = []
        for index, state in enumerate(states):
            mixed = self.apply(index, x, state, call.at(index, EVERY))
            after.append(mixed.state)
            probability = torch.sigmoid(F.linear(mixed.out, self.halt.weight, self.halt.bias))[..., 0]
            frozen = halting.halted
            weight, halting = halting.step(probability, index == len(states) - 1, self.epsilon)
            total = total + weight[..., None] * mixed.out
            x = torch.where(frozen[..., None], x, mixed.out)
        if call.probe.listens:
            valid = call.tokens.valid()
            call.probe.loss("ponder", masked_mean(halting.ponder(), valid), valid.sum())
            call.probe.at("halting").metric("steps", masked_mean(halting.steps.detach(), valid))
        return chosen(total, call.wanted), after
