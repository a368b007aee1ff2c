"""The Decision Transformers of d3rlpy, which act through ``StatefulTransformerWrapper``. Inputs: see ``sequences``."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from d3rlpy.algos import DecisionTransformerConfig, DiscreteDecisionTransformerConfig, StatefulTransformerWrapper
from d3rlpy.models import VectorEncoderFactory
from jaxtyping import Bool, Float
from torch import Tensor

from rltransformers.conformance.adapters import sequences
from rltransformers.conformance.adapters.rollouts import decoded, shaken
from rltransformers.conformance.protocol import Traits

CONTEXT, LONGEST_EPISODE = 8, 20
NO_FILE = "the wrapper that acts keeps its window in private attributes and has no save"


class D3rlpyPolicy:
    """The continuous algorithm, or the discrete one, each with the positions that it has by default.

    A state is a wrapper per row, which is where the library keeps the window; its hook for sampling tells the action
    that was taken.
    """

    inputs = sequences.INPUTS
    padding = "left"

    def __init__(self, discrete: bool) -> None:
        self.discrete = discrete
        exempt = sequences.OFFLINE | {
            "changed weights take effect": "nothing is cached: every decision computes its window again",
            "saved in mid-episode": NO_FILE,
        }
        self.traits = Traits(full=CONTEXT, longest=CONTEXT, resets_inside=False, continues=False, exempt=exempt)
        small = {
            "context_size": CONTEXT,
            "max_timestep": LONGEST_EPISODE,
            "num_heads": 2,
            "num_layers": 2,
            "encoder_factory": VectorEncoderFactory([16]),
        }
        config: Any = DiscreteDecisionTransformerConfig if discrete else DecisionTransformerConfig
        self.algorithm: Any = config(**small).create()
        self.algorithm.create_impl((sequences.OBSERVATION,), 3 if discrete else sequences.ACTION)
        self.module = self.algorithm.impl.modules.transformer
        shaken(self.module.parameters())

    def reset(self, batch: int) -> list["_Row"]:
        return [_Row(self) for _ in range(batch)]

    def step(
        self, inputs: Float[Tensor, "B D"], first: Bool[Tensor, " B"], state: list["_Row"]
    ) -> tuple[Float[Tensor, "B A"], list["_Row"]]:
        rows = zip(state, inputs, first.tolist(), strict=True)
        return torch.stack([row.step(each, begins) for row, each, begins in rows]), state

    def segment(self, inputs: Float[Tensor, "B T D"], first: Bool[Tensor, "B T"], state: Any) -> Float[Tensor, "B T A"]:
        return self.window(inputs, 0)

    def window(self, inputs: Float[Tensor, "B T D"], start: int) -> Float[Tensor, "B T A"]:
        """Filled up on the left, as ``BasicTrajectorySlicer`` does it."""
        missing = CONTEXT - inputs.shape[1]
        filled = torch.nn.functional.pad(inputs, (0, 0, missing, 0))
        valid = torch.ones(filled.shape[:2], dtype=torch.bool)
        valid[:, :missing] = False
        return self._outputs(filled, valid, start)[:, missing:]

    def pad(self, inputs: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"]) -> Float[Tensor, "B T A"]:
        return self._outputs(inputs, valid, 0)

    def lookback(self, step: int) -> int:
        return min(step + 1, CONTEXT)

    def taken(self, inputs: Tensor) -> Tensor:
        """The action, or its number."""
        action = sequences.actions(inputs)
        return decoded(3 * action[..., :1]) if self.discrete else action

    def _outputs(self, inputs: Tensor, valid: Tensor, start: int) -> Tensor:
        # Numbers of steps begin with 1, and padding has 0, in ``BasicTrajectorySlicer`` and in the wrapper.
        numbers = torch.where(valid, sequences.timesteps(valid, start) + 1, 0)
        self.module.train()  # the training pass; dropout is switched off
        for module in self.module.modules():
            if isinstance(module, torch.nn.Dropout):
                module.eval()
        returned = sequences.returns_to_go(inputs)[..., None]
        steps = sequences.observations(inputs), self.taken(inputs), returned, numbers, 1 - valid.float()
        outputs = self.module(*steps)
        return outputs[1] if self.discrete else outputs

    def weights(self) -> Iterable[Tensor]:
        return list(self.module.parameters())


class _Row:
    """One environment; asked for 0, so that minus the sum of the rewards is what remains to be returned."""

    def __init__(self, policy: D3rlpyPolicy) -> None:
        self.policy, self.asked = policy, 0.0
        self.output = self.action = np.zeros(0)
        self.wrapper = StatefulTransformerWrapper(policy.algorithm, target_return=0.0, action_sampler=self._sample)

    def _sample(self, output: np.ndarray) -> Any:
        self.output = output
        return int(self.action) if self.policy.discrete else self.action

    def step(self, inputs: Tensor, begins: bool) -> Tensor:
        if begins:
            self.wrapper.reset()
            self.asked = 0.0
        asked = float(sequences.returns_to_go(inputs))
        reward, self.asked = self.asked - asked, asked
        self.action = (
            self.policy.taken(inputs).numpy().squeeze() if self.policy.discrete else self.policy.taken(inputs).numpy()
        )
        self.wrapper.predict(sequences.observations(inputs).numpy(), reward)
        return torch.as_tensor(self.output.copy())
