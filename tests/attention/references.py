"""A slow walk of one episode through the whole backbone, with the twin that the row of every entry carries."""

import torch
from torch import Tensor

from rltransformers.backbone import Backbone
from tests.attention.rows import ROWS
from tests.attention.twins import (
    Depth,
    Elements,
    Logits,
    Reader,
    Residual,
    Rows,
    elements_by_token,
    layer_norm,
    nothing,
    rms_norm,
)


def backbone_reference(backbone: Backbone, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Outputs [t, D] of one episode and what its state holds at the end: inputs of layers, slots, sums."""
    walk = Walk(backbone)
    return torch.stack(walk.episode(list(x))), walk.state


def twin_of(axis: str, name: str) -> object:
    """The twin in the row of an entry.

    Raises:
        KeyError: there is no such row.
        AssertionError: the row has no twin.
    """
    twin = ROWS[axis, name].twin
    assert twin is not None, f"the row of {axis} {name} has no twin"
    return twin


class Walk:
    """One episode on its way through the layers.

    Attributes:
        layers: applications of layers.
        state: what the layers keep, by the names of the library.
        elements: of every token, and which of them exist.
    """

    def __init__(self, backbone: Backbone) -> None:
        self.layers = backbone.config.layers
        self.readers = [Reader(backbone, layer, twin_of) for layer in range(self.layers)]
        self.state: dict[str, Tensor] = {}
        self.elements: list[Elements] = []

    def reader(self, layer: int) -> Reader:
        """Parameters and settings of one application of a layer."""
        return self.readers[layer]

    def episode(self, tokens: Rows) -> Rows:
        """Outputs of all tokens."""
        self.elements = elements_by_token(torch.stack(tokens))
        reader = self.reader(0)
        depth: Depth = reader.twin("depth")
        residual: Residual = reader.twin("residual")
        tokens = self.embedded(tokens) if depth.embeds_once else tokens
        tokens = self.norm("input_norm", tokens) if reader.config.input_norm else tokens
        tokens = (residual.way or depth.way)(self, tokens)
        return self.norm("final_norm", tokens) if reader.config.final_norm else tokens

    def embedded(self, rows: Rows) -> Rows:
        """Rows with the encodings of the input."""
        reader = self.reader(0)
        for twin, options in reader.positions():
            if twin.every is not None and reader.twin("depth").embeds_once:
                continue
            rows = [twin.embed(reader, options, row, p) for p, row in enumerate(rows)]
        return rows

    def norm(self, name: str, rows: Rows) -> Rows:
        """A norm around the layers."""
        if self.reader(0).config.norm == "rms":
            return [rms_norm(row, self.reader(0).tensors[f"{name}.weight"]) for row in rows]
        weight, bias = (self.reader(0).tensors[f"{name}.{each}"] for each in ("weight", "bias"))
        return [layer_norm(row, weight, bias) for row in rows]

    def layer(self, index: int, tokens: Rows, below: Logits) -> tuple[Rows, Logits]:
        """The stream after one layer, and the logits of the layer."""
        reader = self.reader(index)
        if reader.twin("depth").embeds_once:
            for twin, options in reader.positions():
                if twin.every is not None:
                    tokens = [twin.every(reader, options, row, p, index + 1) for p, row in enumerate(tokens)]
        mixed, logits = self.mix(index, tokens, below)
        tokens = [reader.combine("join_mixing", x, y) for x, y in zip(tokens, mixed, strict=True)]
        tokens = reader.twin("topology")(reader, tokens, self.elements)
        if reader.twin("ff") is nothing:
            return tokens, logits
        transformed = self.transform(index, tokens)
        return [reader.combine("join_ff", x, y) for x, y in zip(tokens, transformed, strict=True)], logits

    def mix(self, index: int, tokens: Rows, below: Logits) -> tuple[Rows, Logits]:
        """The mixing submodule of one layer."""
        reader = self.reader(index)
        prepared = [reader.prepare("join_mixing", row) for row in tokens]
        mixer = reader.twin("prior").reads(reader) or reader.twin("mixer")
        mixed, state, logits = mixer(reader, tokens, prepared, below)
        self.state |= {f"layer{index}.{name}": value for name, value in state.items()}
        return mixed, logits

    def transform(self, index: int, tokens: Rows) -> Rows:
        """The transform of one layer."""
        reader = self.reader(index)
        rows, state = reader.twin("ff")(reader, [reader.prepare("join_ff", row) for row in tokens])
        self.state |= {f"layer{index}.ff.{name}": value for name, value in state.items()}
        return rows
