"""``DtqnAgent`` of the Deep Transformer Q-Networks, which acts on the newest steps in its ``Context``.

Inputs: an observation, and the action before it as ``rollouts.code`` writes it. A state is a context per row.
"""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import gym
import numpy as np
import torch
from dtqn.agents.dtqn import DtqnAgent
from dtqn.networks.dtqn import DTQN
from jaxtyping import Bool, Float
from torch import Tensor
from utils.context import Context
from utils.env_processing import get_env_obs_mask
from utils.random import RNG

from rltransformers.conformance.adapters.rollouts import ACTIONS, OBSERVATION, decoded, shaken
from rltransformers.conformance.protocol import Traits

CONTEXT = 8


class DtqnPolicy:
    """Outputs: Q-values.

    Args:
        mask: what stands in place of observations that are not there; None for what the program finds for a Box.
        action_width: numbers that embed the action before; 0 by default in the program, which then does not see it.
    """

    inputs = OBSERVATION + 1
    padding = "right"

    def __init__(self, mask: float | None, action_width: int) -> None:
        exempt = {
            "changed weights take effect": "nothing is cached: every decision computes its window again",
            "first ratio is 1": "Q-learning compares no probabilities",
            "saved in mid-episode": "checkpoints hold weights and replay; the context begins with an episode",
            "stopped run keeps memory": "a run goes on with a new episode",
            "bootstraps from the right memory": "targets come from windows that begin one step later",
        }
        self.traits = Traits(full=CONTEXT, longest=CONTEXT, resets_inside=False, continues=False, exempt=exempt)
        box = gym.spaces.Box(-5.0, 5.0, (OBSERVATION,))
        self.mask = get_env_obs_mask(SimpleNamespace(observation_space=box, reset=box.sample)) if mask is None else mask
        RNG.rng = np.random.default_rng(0)
        network = DTQN(OBSERVATION, ACTIONS, 1, action_width, 16, 2, 2, CONTEXT, pos="learned")
        self.agent = DtqnAgent(
            lambda: network, 400, torch.device("cpu"), OBSERVATION, 40, self.mask, ACTIONS, False, context_len=CONTEXT
        )
        self.net: Any = self.agent.policy_network
        shaken(self.weights())
        self.net.register_forward_hook(lambda module, inputs, outputs: setattr(self, "found", outputs))
        self.found = torch.zeros(0)

    def reset(self, batch: int) -> list[Context]:
        return [Context(CONTEXT, self.mask, ACTIONS, OBSERVATION) for _ in range(batch)]

    def step(
        self, inputs: Float[Tensor, "B D"], first: Bool[Tensor, " B"], state: list[Context]
    ) -> tuple[Float[Tensor, "B A"], list[Context]]:
        self.agent.eval_on()
        outputs = []
        for row, context in enumerate(state):
            self.agent.eval_context = context
            observation, action = inputs[row, :OBSERVATION].numpy(), int(decoded(inputs[row, OBSERVATION]))
            if first[row]:
                self.agent.context_reset(observation)
            else:
                self.agent.observe(observation, action, 0.0, False)
            self.agent.get_action()
            outputs.append(self.found[0, -1])
        return torch.stack(outputs), state

    def segment(self, inputs: Float[Tensor, "B T D"], first: Bool[Tensor, "B T"], state: Any) -> Float[Tensor, "B T A"]:
        return self.window(inputs, 0)

    def window(self, inputs: Float[Tensor, "B T D"], start: int) -> Float[Tensor, "B T A"]:
        """As replay holds it: beside an observation stands the action taken there."""
        self.agent.eval_off()
        taken = torch.zeros(*inputs.shape[:2], 1, dtype=torch.long)
        taken[:, :-1] = decoded(inputs[:, 1:, OBSERVATION:])
        outputs: Tensor = self.net(inputs[..., :OBSERVATION], taken)
        return outputs

    def pad(self, inputs: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"]) -> Float[Tensor, "B T A"]:
        return self.window(inputs, 0)

    def lookback(self, step: int) -> int:
        return min(step + 1, CONTEXT)

    def weights(self) -> Iterable[Tensor]:
        return [each for each in self.net.parameters() if each.requires_grad]
