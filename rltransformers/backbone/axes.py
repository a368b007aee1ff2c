"""The axes of the backbone: which mechanisms a config chooses from, and how each choice may be written.

Config, rules, documents, benchmarks and the command ``list`` derive from this table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rltransformers.attention.catalogue import HEAD_MIXINGS, MIXERS, PATTERNS, PRIORS, SELECTIONS, SPANS
from rltransformers.backbone.depth import DEPTHS
from rltransformers.backbone.losses import LOSSES
from rltransformers.backbone.topology import TOPOLOGIES
from rltransformers.blocks.feedforward import FEED_FORWARDS
from rltransformers.blocks.residual import RESIDUALS
from rltransformers.core.spec import Feature, Spec
from rltransformers.memory.catalogue import MEMORIES
from rltransformers.positions.catalogue import POSITIONS


@dataclass(frozen=True)
class Axis:
    """One question that a config answers.

    Attributes:
        name: the field of ``BackboneConfig``.
        table: the answers by name.
        decides: what the answer is about, part of a sentence.
        neutral: the answer of the plain stack, with which every other mechanism works; "" where the field is no choice.
        per_layer: a list gives the layers their answers in turn.
        per_head: a list inside that list gives one answer per head.
        several: a list gives answers that hold together.
        reaches: a choice acts in the layers whose mixer offers this and must fit all of them; None: it acts in the
            layers whose mixer offers what it needs.
        attention: the answer changes what happens inside attention.
    """

    name: str
    table: Mapping[str, Spec]
    decides: str
    neutral: str = ""
    per_layer: bool = False
    per_head: bool = False
    several: bool = False
    reaches: Feature | None = None
    attention: bool = True


AXES = {
    axis.name: axis
    for axis in (
        Axis("position", POSITIONS, "how positions enter attention", "none", several=True),
        Axis("pattern", PATTERNS, "which earlier tokens a token may attend to", "full", per_layer=True, per_head=True),
        Axis("selection", SELECTIONS, "which of the visible keys are used", "none", per_layer=True),
        Axis(
            "mixer", MIXERS, "how values are mixed: softmax attention or something cheaper", "softmax", per_layer=True
        ),
        Axis("prior", PRIORS, "what is added to the scores besides content and position, or to the values", "none"),
        Axis("head_mixing", HEAD_MIXINGS, "how heads share keys and exchange information", "mha"),
        Axis("span", SPANS, "how far each head looks back, if this is learned", "full", per_layer=True),
        Axis("memory_kind", MEMORIES, "what a layer keeps of earlier calls", "transformer_xl", reaches=Feature.ROWS),
        Axis("depth", DEPTHS, "whether layers share weights, and how often they run", "fixed", attention=False),
        Axis("residual", RESIDUALS, "residual connections: norms and gates", "pre_ln", attention=False),
        Axis("ff", FEED_FORWARDS, "the part of a layer after attention", "ffn", attention=False),
        Axis("topology", TOPOLOGIES, "whether layers read other tokens than those of the sequence", "decoder"),
        Axis("losses", LOSSES, "auxiliary losses", attention=False),
    )
}
CHOICES = {name: axis for name, axis in AXES.items() if axis.neutral}
"""The axes whose field is a choice."""

PLAIN: dict[str, Any] = {name: axis.neutral for name, axis in CHOICES.items()}
"""The plain stack: pre-norm, full softmax attention, no positions. Presets start from it."""


def catalogue() -> dict[str, list[Spec]]:
    """Every mechanism by axis, in the order of the docs."""
    return {name: list(axis.table.values()) for name, axis in AXES.items()}
