"""x-transformers with its cache of keys and values, acting as ``ContinuousAutoregressiveWrapper.generate`` does.

Inputs: three numbers. The library makes sequences of what it predicts itself; here they are given, so that the training
pass and the steps see the same.
"""

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from x_transformers import ContinuousTransformerWrapper, Decoder

from rltransformers.conformance.adapters.rollouts import shaken
from rltransformers.conformance.protocol import Traits

CONTEXT = 8


class XTransformersPolicy:
    """A decoder with learned positions for 8 steps, or with rotary ones for any number.

    A state holds the steps so far [B, t, D] and the cache.
    """

    inputs = 3
    padding = "left"

    def __init__(self, rotary: bool) -> None:
        exempt = {
            "reset leaks nothing": "the caller holds the cache, and an episode begins without one, in all rows at once",
            "first ratio is 1": "no learner in the library",
            "saved in mid-episode": "the caller holds the cache, for which the library has no file",
            "stopped run keeps memory": "no learner in the library",
            "bootstraps from the right memory": "no learner in the library",
        }
        self.longest = None if rotary else CONTEXT
        self.traits = Traits(
            full=CONTEXT,
            longest=self.longest,
            resets_inside=False,
            continues=False,
            cache="keys and values of the steps so far",
            caller_holds_cache=True,
            exempt=exempt,
        )
        layers = Decoder(dim=32, depth=2, heads=2, attn_dim_head=32, rotary_pos_emb=rotary)
        self.net = ContinuousTransformerWrapper(
            dim_in=3, dim_out=3, max_seq_len=self.longest, attn_layers=layers
        ).eval()
        shaken(self.net.parameters())
        if not rotary:
            self.lookback, self.window = self._lookback, self._window  # it is trained on windows

    def reset(self, batch: int) -> tuple[Tensor, Any]:
        return torch.zeros(batch, 0, self.inputs), None

    def step(
        self, inputs: Float[Tensor, "B D"], first: Bool[Tensor, " B"], state: tuple[Tensor, Any]
    ) -> tuple[Float[Tensor, "B A"], tuple[Tensor, Any]]:
        steps, cache = self.reset(len(first)) if bool(first.all()) else state
        steps = torch.cat([steps, inputs[:, None]], 1)
        seen = steps if self.longest is None else steps[:, -self.longest :]
        outputs, cache = self.net(seen, cache=cache, return_intermediates=True)
        return outputs[:, -1], (steps, cache)

    def segment(self, inputs: Float[Tensor, "B T D"], first: Bool[Tensor, "B T"], state: Any) -> Float[Tensor, "B T A"]:
        found: Tensor = self.net(inputs)
        return found

    def pad(self, inputs: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"]) -> Float[Tensor, "B T A"]:
        found: Tensor = self.net(inputs, mask=valid, seq_start_pos=(~valid).sum(1))
        return found

    def weights(self) -> Iterable[Tensor]:
        return list(self.net.parameters())

    def _lookback(self, step: int) -> int:
        return min(step + 1, CONTEXT)

    def _window(self, inputs: Float[Tensor, "B T D"], start: int) -> Float[Tensor, "B T A"]:
        found: Tensor = self.net(inputs)
        return found
