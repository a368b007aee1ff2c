"""What CleanRL's ``ppo_trxl`` and MarcoMeter's ``episodic-transformer-memory-ppo`` share: a memory per episode.

Every step of an episode has a row, which holds the inputs of all layers. Acting reads a window of the newest ``length``
rows, with masks and indices from tables of the program. The update reads the same windows of the stored memories. A
state is the memory [B, S, layers, D] and the steps so far [B].
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rltransformers.conformance.adapters.rollouts import OBSERVATION
from rltransformers.conformance.protocol import Traits

State = tuple[Tensor, Tensor]
PADDED = {"padding does not matter": "a window that is not full is padded, in step = segment"}


@dataclass
class EpisodicMemory:
    """A policy of one of the two programs.

    Attributes:
        traits: of it.
        net: has all weights.
        forward: outputs [N, A] and new rows [N, layers, D] of observations, windows, masks and indices.
        select: reads rows at indices, ``batched_index_select`` of the program.
        mask, indices: tables of the program, by step.
        rows: steps, layers and width of a memory.
        trims: whether the update cuts off what no mask of the rollout shows.
    """

    traits: Traits
    net: Any
    forward: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    select: Callable[[Tensor, int, Tensor], Tensor]
    mask: Tensor
    indices: Tensor
    rows: tuple[int, int, int]
    trims: bool
    inputs: int = OBSERVATION

    def reset(self, batch: int) -> State:
        return torch.zeros(batch, *self.rows), torch.zeros(batch, dtype=torch.long)

    def step(
        self, inputs: Float[Tensor, "B D"], first: Bool[Tensor, " B"], state: State
    ) -> tuple[Float[Tensor, "B A"], State]:
        memory, steps = state[0] * ~first[:, None, None, None], state[1] * ~first
        mask, indices = self.mask[steps.clamp(max=len(self.mask) - 1)].bool(), self.indices[steps]
        outputs, new = self.forward(inputs, self.select(memory, 1, indices), mask, indices)
        memory[range(len(steps)), steps] = new
        return outputs, (memory, steps + 1)

    def segment(
        self, inputs: Float[Tensor, "B T D"], first: Bool[Tensor, "B T"], state: State
    ) -> Float[Tensor, "B T A"]:
        rows, steps = first.shape
        after, of_step = [], []
        for t in range(steps):
            of_step.append(state[1] * ~first[:, t])
            _, state = self.step(inputs[:, t], first[:, t], state)
            after.append(state[0])
        # The update reads the memory that an episode has at its end, or at that of the rollout.
        ends = [[next((end for end in range(t + 1, steps) if first[row, end]), steps) - 1 for t in range(steps)]
                for row in range(rows)]  # fmt: skip
        stored = torch.stack([torch.stack([after[end][row] for end in each]) for row, each in enumerate(ends)])
        place = torch.stack(of_step, 1).flatten()
        mask, indices = self.mask[place.clamp(max=len(self.mask) - 1)].bool(), self.indices[place]
        stored = stored.flatten(0, 1)
        longest = int((indices * mask).max()) + 1
        if self.trims and longest < len(self.mask):
            stored, mask, indices = stored[:, :longest], mask[:, :longest], indices[:, :longest]
        outputs, _ = self.forward(inputs.flatten(0, 1), self.select(stored, 1, indices), mask, indices)
        return outputs.unflatten(0, (rows, steps))

    def weights(self) -> list[Tensor]:
        return list(self.net.parameters())
