"""``Recurrent`` of tianshou: acts as its ``Collector`` does, learns on the stacks of its ``ReplayBuffer``."""

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Bool, Float
from tianshou.data import Batch, ReplayBuffer
from tianshou.utils.net.common import Recurrent
from torch import Tensor

from rltransformers.conformance.adapters.rollouts import ACTIONS, OBSERVATION, shaken
from rltransformers.conformance.protocol import Traits

STACK = 4


class TianshouPolicy:
    """Outputs: Q-values. Acting carries the state of the LSTM; an update runs it over four steps from zeros."""

    inputs = OBSERVATION

    def __init__(self) -> None:
        exempt = {
            "first ratio is 1": "Q-learning compares no probabilities",
            "saved in mid-episode": "the caller holds the state and the weights",
            "stopped run keeps memory": "a run goes on in new environments, whose episodes begin",
            "bootstraps from the right memory": "targets are of the next stack, as everything in an update",
        }
        self.traits = Traits(full=None, continues=False, exempt=exempt)
        self.net = Recurrent(layer_num=1, state_shape=OBSERVATION, action_shape=ACTIONS, hidden_layer_size=16)
        shaken(self.net.parameters())

    def reset(self, batch: int) -> Any:
        return None

    def step(self, inputs: Float[Tensor, "B D"], first: Bool[Tensor, " B"], state: Any) -> tuple[Tensor, Any]:
        if state is not None:  # as ``Collector._reset_hidden_state_based_on_type`` clears rows
            state = Batch({name: each * ~first[:, None, None] for name, each in state.items()})
        return self.net(inputs.numpy(), state)

    def segment(self, inputs: Float[Tensor, "B T D"], first: Bool[Tensor, "B T"], state: Any) -> Float[Tensor, "B T A"]:
        outputs = []
        for row, begins in zip(inputs, first, strict=True):
            buffer = ReplayBuffer(len(row), stack_num=STACK)
            for t, observation in enumerate(row):
                end = bool(begins[t + 1]) if t + 1 < len(row) else False
                step = {"obs": observation.numpy(), "obs_next": observation.numpy(), "act": 0, "rew": 0.0}
                buffer.add(Batch(**step, terminated=end, truncated=False))
            stacked = buffer.get(buffer.sample_indices(0), "obs")
            outputs.append(self.net(stacked)[0])
        return torch.stack(outputs)

    def weights(self) -> Iterable[Tensor]:
        return list(self.net.parameters())
