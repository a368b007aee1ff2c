"""The Decision Transformer of its paper, kzl/decision-transformer, in its version for Gym. Inputs: see ``sequences``.

Acts with ``get_action``, as ``evaluate_episode_rtg`` calls it: with all steps so far, of one environment.
"""

import importlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from rltransformers.conformance.adapters import sequences
from rltransformers.conformance.adapters.rollouts import shaken
from rltransformers.conformance.protocol import Traits
from tests.peers.adapters.recomputing import EXEMPT, MaskedWindows

# The library of today has other arguments for this decorator of docstrings.
library: Any = importlib.import_module("transformers.file_utils")
library.add_code_sample_docstrings = lambda **arguments: lambda function: function
program: Any = importlib.import_module("decision_transformer.models.decision_transformer")

CONTEXT, LONGEST_EPISODE = 8, 20
NO_FILE = "the caller holds the steps and the weights"


class KzlPolicy(MaskedWindows):
    """Outputs: predicted actions."""

    def __init__(self) -> None:
        exempt = EXEMPT | {"saved in mid-episode": NO_FILE, "stopped run keeps memory": NO_FILE}
        self.traits = Traits(full=CONTEXT, longest=CONTEXT, resets_inside=False, continues=False, exempt=exempt)
        self.net = program.DecisionTransformer(
            sequences.OBSERVATION,
            sequences.ACTION,
            hidden_size=16,
            max_length=CONTEXT,
            max_ep_len=LONGEST_EPISODE,
            n_layer=2,
            n_head=2,
            n_ctx=1024,  # the default of the release of transformers that the repository names
        ).eval()
        shaken(self.weights())
        super().__init__(10**6, self._decide)  # ``get_action`` cuts the window by itself

    def _decide(self, steps: Tensor, start: int) -> Tensor:
        actions = sequences.actions(steps)
        actions[:, -1] = 0.0  # "add padding": it is not known yet
        numbers = torch.arange(steps.shape[1])
        rows = zip(sequences.observations(steps), actions, sequences.returns_to_go(steps), strict=True)
        return torch.stack([self.net.get_action(*row[:2], None, row[2], numbers) for row in rows])

    def masked_outputs(self, inputs: Tensor, valid: Tensor, start: int) -> Tensor:
        returned, numbers = sequences.returns_to_go(inputs)[..., None], sequences.timesteps(valid, start)
        steps = sequences.observations(inputs), sequences.actions(inputs), None, returned, numbers
        outputs: Tensor = self.net(*steps, attention_mask=valid.long())[1]
        return outputs

    def lookback(self, step: int) -> int:
        return min(step + 1, CONTEXT)

    def weights(self) -> Iterable[Tensor]:
        return list(self.net.parameters())
