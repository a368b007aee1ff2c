"""A backbone as a step over dictionaries of tensors, as files and machine code take it."""

import torch
from torch import Tensor, nn

from rltransformers.backbone import Backbone, State
from rltransformers.backbone.state import part_of, prefixed

Tensors = dict[str, Tensor]


class BackboneStep(nn.Module):
    """The tokens of one environment step: inputs "x" [B, G, D] and "reset" [B, G], output "y" [B, G, D]."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, inputs: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        y, after = self.backbone.step(inputs["x"], State(state), inputs["reset"], tables=part_of("table", inputs))
        return {"y": y}, after.tensors

    def draw(self, batch: int, generator: torch.Generator) -> Tensors:
        """Inputs of one step with the tables of today's weights."""
        return {**self.tokens(batch, generator), **self.tables()}

    def tables(self) -> Tensors:
        """What depends on the weights alone."""
        return prefixed("table", self.backbone.tables())

    def tokens(self, batch: int, generator: torch.Generator) -> Tensors:
        """Tokens of one step: an episode begins in one of ten, at its first token."""
        group = self.backbone.config.tokens_per_step
        reset = torch.zeros(batch, group, dtype=torch.bool)
        reset[:, 0] = torch.rand(batch, generator=generator) < 0.1
        x = torch.randn(batch, group, self.backbone.width, generator=generator)
        return {"x": x, "reset": reset}
