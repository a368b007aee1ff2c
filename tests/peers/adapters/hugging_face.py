"""``DecisionTransformerModel`` of transformers. Inputs: see ``sequences``.

The library has no code that acts. Acting is here as its tutorial and the paper's code do it: the newest steps, padded
on the left to the context with an attention mask, are computed again for every decision.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from transformers import DecisionTransformerConfig, DecisionTransformerModel
from transformers.utils import logging

from rltransformers.conformance.adapters import sequences
from rltransformers.conformance.adapters.rollouts import shaken
from rltransformers.conformance.protocol import Traits
from tests.peers.adapters.recomputing import EXEMPT, MaskedWindows

CONTEXT, LONGEST_EPISODE = 8, 20


class HuggingFacePolicy(MaskedWindows):
    """Outputs: predicted actions."""

    def __init__(self) -> None:
        logging.disable_progress_bar()  # of saving and loading
        self.traits = Traits(full=CONTEXT, longest=CONTEXT, resets_inside=False, continues=False, exempt=EXEMPT)
        config = DecisionTransformerConfig(
            state_dim=sequences.OBSERVATION,
            act_dim=sequences.ACTION,
            hidden_size=16,
            n_layer=2,
            n_head=2,
            max_ep_len=LONGEST_EPISODE,
            bos_token_id=None,  # its sequences are no text
            eos_token_id=None,
        )
        self._use(DecisionTransformerModel(config))
        shaken(self.model.parameters())

    def _use(self, model: Any) -> None:
        self.model = model.eval()
        super().__init__(CONTEXT, self._decide)

    def _decide(self, steps: Tensor, start: int) -> Tensor:
        blank = steps.clone()
        blank[:, -1, sequences.OBSERVATION + 1 :] = 0.0  # its action is not known yet
        missing = CONTEXT - steps.shape[1]
        filled = torch.nn.functional.pad(blank, (0, 0, missing, 0))
        valid = torch.ones(filled.shape[:2], dtype=torch.bool)
        valid[:, :missing] = False
        return self.masked_outputs(filled, valid, start)[:, -1]

    def masked_outputs(self, inputs: Tensor, valid: Tensor, start: int) -> Tensor:
        found: Tensor = self.model(
            states=sequences.observations(inputs),
            actions=sequences.actions(inputs),
            rewards=None,
            returns_to_go=sequences.returns_to_go(inputs)[..., None],
            timesteps=sequences.timesteps(valid, start),
            attention_mask=valid.long(),
            return_dict=True,
        ).action_preds
        return found

    def weights(self) -> Iterable[Tensor]:
        return list(self.model.parameters())

    def save(self, state: Tensor, folder: Path) -> None:
        self.model.save_pretrained(folder / "model")
        torch.save(state, folder / "steps.pt")

    def load(self, folder: Path) -> tuple[Self, Tensor]:
        again = object.__new__(type(self))
        again.traits = self.traits
        again._use(DecisionTransformerModel.from_pretrained(folder / "model"))
        return again, torch.load(folder / "steps.pt", weights_only=True)
