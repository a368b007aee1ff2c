"""AMAGO's ``TformerTrajEncoder``, with its own attention for processors, as ``Experiment.interact`` steps it.

Inputs: three numbers of a step, which its ``TstepEncoder`` would make of observation, action and reward. A state holds
the hidden state of the encoder and the number of the next step, which the environment tells.
"""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from amago.nets.traj_encoders import TformerTrajEncoder
from amago.nets.transformer import VanillaAttention
from jaxtyping import Bool, Float
from torch import Tensor

from rltransformers.conformance.adapters.rollouts import shaken
from rltransformers.conformance.protocol import Traits

CONTEXT, WIDTH = 8, 16


class AmagoPolicy:
    """Trained on windows of at most ``max_seq_len`` steps of an episode, which begin anywhere in it.

    The training pass is computed in evaluation mode: in training mode its normalized weights take a step of the power
    iteration in every pass, beside dropout.
    """

    inputs = 3

    def __init__(self) -> None:
        torch.compiler.set_stance("force_eager")  # it compiles the layers, for seconds each
        exempt = {
            "first ratio is 1": "off-policy learning compares no probabilities with those of acting",
            "saved in mid-episode": "files hold weights; hidden states stay with the running experiment",
            "stopped run keeps memory": "a run goes on in new environments, whose episodes begin",
            "bootstraps from the right memory": "values of next steps are outputs of the same pass, one step later",
        }
        self.traits = Traits(
            full=CONTEXT,
            longest=CONTEXT,
            resets_inside=False,
            continues=False,
            cache="keys and values of the steps so far",
            exempt=exempt,
        )
        self.net = TformerTrajEncoder(
            self.inputs, CONTEXT, d_model=WIDTH, n_heads=2, d_ff=32, n_layers=2, attention_type=VanillaAttention
        ).eval()
        shaken(self.net.parameters())

    def reset(self, batch: int) -> tuple[Any, Tensor]:
        return self.net.init_hidden_state(batch, torch.device("cpu")), torch.zeros(batch, dtype=torch.long)

    def step(
        self, inputs: Float[Tensor, "B D"], first: Bool[Tensor, " B"], state: tuple[Any, Tensor]
    ) -> tuple[Float[Tensor, "B A"], tuple[Any, Tensor]]:
        hidden, numbers = self.net.reset_hidden_state(copy.deepcopy(state[0]), first.numpy()), state[1] * ~first
        outputs, hidden = self.net(inputs[:, None], numbers[:, None, None], hidden)
        return outputs[:, 0], (hidden, numbers + 1)

    def segment(self, inputs: Float[Tensor, "B T D"], first: Bool[Tensor, "B T"], state: Any) -> Float[Tensor, "B T A"]:
        return self.window(inputs, 0)

    def window(self, inputs: Float[Tensor, "B T D"], start: int) -> Float[Tensor, "B T A"]:
        numbers = torch.arange(start, start + inputs.shape[1]).expand(inputs.shape[:2])[..., None]
        outputs: Tensor = self.net(inputs, numbers)[0]
        return outputs

    def lookback(self, step: int) -> int:
        return min(step + 1, CONTEXT)

    def weights(self) -> Iterable[Tensor]:
        return list(self.net.parameters())
