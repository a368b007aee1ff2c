"""A universal layer with adaptive computation time (Graves 2016, arXiv 1603.08983; Dehghani et al. 2019, appendix A.8).

Axes: B batch, T tokens, D model width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.blocks.halting import Halting
from rltransformers.functional.call import EVERY, Call, chosen
from rltransformers.memory.interface import LayerState
from rltransformers.stacks.plain import Plain


@dataclass(frozen=True)
class AdaptiveTime(Plain):
    """One layer; a halted token keeps its state as key for the others.

    Attributes:
        halt: reads the halting probability from the stream after an application.
        epsilon: a token halts when its probabilities add up to 1 - epsilon.
    """

    halt: nn.Linear
    epsilon: float

    def run(self, x: Tensor, states: Sequence[LayerState], call: Call) -> tuple[Tensor, list[LayerState]]:
        """Weighted stream [B, t, D] and the states after all applications."""
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
            valid = call.tokens.valid().to(x.dtype)
            count = valid.sum().clamp(min=1)
            call.probe.loss("ponder", (halting.ponder() * valid).sum() / count)
            call.probe.at("halting").metric("steps", (halting.steps.detach() * valid).sum() / count)
        return chosen(total, call.wanted), after
