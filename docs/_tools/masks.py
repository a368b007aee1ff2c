"""Pictures of who attends to whom, drawn from what attention itself reports while a backbone acts step by step."""

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from rltransformers.attention.layer import Attention
from rltransformers.attention.reach import Columns
from rltransformers.attention.roles import Objective
from rltransformers.backbone import PLAIN, Backbone, BackboneConfig, Record
from rltransformers.functional.call import Tokens

STEPS = 40
Cells = Bool[Tensor, "T T"]
READ, SUMMARIES, PAST = "#2f7de1", ("#e08a1e", "#e0b36c"), "#80808026"
"""Colors that can be seen on white and on black: keys, summaries in turn, earlier steps that are not read."""
EXAMPLE = 0
"""Of the heads of all layers, the one that an overview shows."""

PICTURES: dict[str, dict[str, dict[str, Any]]] = {
    "pattern": {
        "full": {"pattern": "full", "memory": 27},
        "band": {"pattern": {"name": "band", "window": 8}},
        "dilated": {"pattern": {"name": "dilated", "window": 6, "dilation": 4}},
        "longformer": {"pattern": {"name": "longformer", "window": 6, "sinks": 3}},
        "bp": {"pattern": {"name": "bp", "neighbors": 2}},
        "etc": {"pattern": {"name": "etc", "window": 6, "block": 5, "globals": 2}},
        "global": {"pattern": {"name": "global", "sinks": 3}},
        "random": {"pattern": {"name": "random", "block": 5, "count": 2}, "heads": 2},
        "block_local": {"pattern": {"name": "block_local", "block": 8, "back": 1}},
        "image_1d": {"pattern": {"name": "image_1d", "block": 8, "before": 4}},
        "image_2d": {"pattern": {"name": "image_2d", "width": 8, "rows": 2, "columns": 4, "above": 1, "beside": 1}},
        "sparse_strided": {"pattern": {"name": "sparse_strided", "stride": 6}},
        "sparse_fixed": {"pattern": {"name": "sparse_fixed", "block": 6}},
        "blockwise": {"pattern": {"name": "blockwise", "block": 8, "shifts": [0, 1, 2]}, "heads": 3},
        "bigbird": {"pattern": {"name": "bigbird", "window": 4, "random": 1, "sinks": 2}, "heads": 2},
        "union": {"pattern": {"name": "union", "patterns": [{"name": "band", "window": 4},
                                                            {"name": "dilated", "window": 5, "dilation": 8}]}},
        "adjacency": {"pattern": {"name": "adjacency", "offsets": [2, 9], "edges": [[20, 0], [30, 5], [30, 12]]}},
        "schedule": {"pattern": [[{"name": "band", "window": 4}, {"name": "dilated", "window": 6, "dilation": 5}],
                                 "full"], "heads": 2, "layers": 2},
    },
}  # fmt: skip
"""What is drawn, by slot and name; heads and layers only where they differ."""


@dataclass
class Mask:
    """What one head of one layer reads.

    Attributes:
        title: head and layer, as far as there are several.
        read: the steps (columns) whose keys a step (row) reads.
        summaries: the last steps of the summaries that a step reads.
    """

    title: str
    read: Cells = field(default_factory=lambda: torch.zeros(STEPS, STEPS, dtype=torch.bool))
    summaries: dict[int, list[int]] = field(default_factory=dict)


class Watch(Objective):
    """Keeps the columns of every layer, in the order in which layers run; it judges nothing."""

    name = "watch"
    reads_weights = True

    def __init__(self) -> None:
        self.columns: list[Columns] = []

    def of_weights(self, weights: Tensor, columns: Columns, tokens: Tokens) -> None:
        self.columns.append(columns)


def legend(axis: str) -> str:
    """How to read the pictures of a slot."""
    return (
        "Blue ones are read, orange ones are read as part of a summary (the color changes with every summary), gray "
        "ones are not read."
    )


def panels_of(axis: str, name: str) -> list[tuple[str, dict[str, Cells]]]:
    """For every head of every layer, as far as they differ: title, and the cells of every color."""
    found, backbone = masks(axis, name)
    return [(mask.title, colored(mask, backbone)) for mask in found]


def masks(axis: str, name: str) -> tuple[list[Mask], Backbone]:
    """What every head of every layer reads, as far as they differ, while the backbone acts; and the backbone."""
    sizes = {"width": 24, "heads": 1, "layers": 1, "memory": STEPS - 1}
    backbone, watch = Backbone(BackboneConfig(**{**PLAIN, **sizes, **PICTURES[axis][name]})), Watch()
    mixers = [mixer for mixer in backbone.mixers() if isinstance(mixer, Attention)]
    state, found = None, dict[tuple[int, int], Mask]()
    for mixer in mixers:
        mixer.plan.objectives, mixer.plan.judges_weights = (watch,), True
    for t in range(STEPS):
        watch.columns.clear()
        _, state = backbone(torch.ones(1, 1, backbone.width), state, record=Record())
        for layer, columns in enumerate(watch.columns):
            distances, chooses = columns.distances(), mixers[layer].chooser is not None
            parts = columns.visible[0, :, 0].split([each.shape[-1] for each in distances], -1)
            for group, (distance, visible) in enumerate(zip(distances, parts, strict=True)):
                for head, seen in enumerate(visible):
                    mask = found.setdefault((layer, head), Mask(title(layer, len(mixers), head, len(visible))))
                    if group == len(parts) - 1:  # the window, or what was chosen of it
                        mask.read[t, t - distance[0, 0, 0][seen]] = True
                    elif chooses:
                        mask.summaries[t] = sorted((t - distance[0, 0, 0][seen]).tolist())
                    else:  # the first steps of the episode, whose distance does not count
                        mask.read[t, : len(seen)] |= seen
    return list(found.values()), backbone


def title(layer: int, layers: int, head: int, heads: int) -> str:
    """Layer and head, counted from 1, as far as there are several."""
    words = [f"layer {layer + 1}"] if layers > 1 else []
    return ", ".join(words + ([f"head {head + 1}"] if heads > 1 else []))


def colored(mask: Mask, backbone: Backbone) -> dict[str, Cells]:
    """The cells of every color; inside a summary are the steps that change the output and are not read themselves."""
    steps = torch.arange(STEPS)
    cells = {PAST: torch.ones(STEPS, STEPS, dtype=torch.bool).tril() & ~mask.read, READ: mask.read}
    if not mask.summaries:
        return cells
    inside = cells[PAST] & influence(backbone)
    for t in range(STEPS):
        inside[t] &= steps <= max(mask.summaries.get(t, []), default=-1)
    behind = torch.stack([(steps[:, None] <= torch.tensor(mask.summaries.get(t, []))).sum(1) for t in range(STEPS)])
    cells[PAST] &= ~inside
    return cells | {color: inside & (behind % 2 == each) for each, color in enumerate(SUMMARIES)}


def influence(backbone: Backbone) -> Cells:
    """Which steps (columns) change the output of a step (rows), of a backbone of one layer."""
    torch.manual_seed(0)
    x = torch.randn(1, STEPS, backbone.width, requires_grad=True)
    out, _ = backbone(x)
    rows = [torch.autograd.grad(out[0, t].square().sum(), x, retain_graph=True)[0] for t in range(STEPS)]
    return torch.cat(rows).abs().amax(-1) > 0
