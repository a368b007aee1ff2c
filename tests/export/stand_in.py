"""Machine code that takes no compiler: the module itself, computed whenever a compiled step would be."""

from typing import Any

import torch
from torch import nn

from rltransformers.export.step import Tensors


class StandIn:
    """Has the constructor and the step of ``CompiledStep``; ``taken`` counts the steps of all.

    Weights are read and the state is written in place as machine code does; nothing is compiled, nothing is checked.
    """

    taken = 0

    def __init__(self, module: nn.Module, *_: Any, **__: Any) -> None:
        self.module = module

    @torch.no_grad()
    def step(self, inputs: Tensors, state: Tensors) -> Tensors:
        """Outputs; the new state is written over ``state``."""
        type(self).taken += 1
        outputs, after = self.module(inputs, state)
        for name, tensor in state.items():
            tensor.copy_(after[name])
        return dict(outputs)
