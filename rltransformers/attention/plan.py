"""The plan of attention: its parts, and the engine that computes it.

Axes: B batch, H heads, T tokens, S keys, L distances, K head width.
"""

import functools
from dataclasses import dataclass, field

import torch

from rltransformers.attention.reach import Pattern
from rltransformers.attention.roles import Chooser, Combine, HandUp, Objective, Part, Score, Stage
from rltransformers.attention.store import Store
from rltransformers.core.spec import Feature
from rltransformers.positions.interface import Acts, Position


@dataclass(frozen=True)
class Plan:
    """The parts in their order, already built.

    Attributes:
        pattern: who may look at whom.
        score: how queries meet keys.
        position: encoding inside attention.
        chooser: picks the keys of every query before any product; None for all that the pattern allows.
        store: retrieves from what lies behind the window; None where nothing is kept there.
        selection, prior, head_mixing, span: parts of the stages.
        combine: what joins the outputs of the heads in place of a projection, or None.
        dropout: share of the weights that is set to 0 in training.
        objectives: auxiliary losses that read what is computed.
    """

    pattern: Pattern
    score: Score
    position: Position = field(default_factory=Position)
    chooser: Chooser | None = None
    store: Store | None = None
    selection: Part = field(default_factory=Part)
    prior: Part = field(default_factory=Part)
    head_mixing: Part = field(default_factory=Part)
    span: Part = field(default_factory=Part)
    combine: Combine | None = None
    dropout: float = 0.0
    objectives: tuple[Objective, ...] = ()

    def __post_init__(self) -> None:
        """Settle what follows from the parts: a strict trace cannot enter the lock of ``cached_property``."""
        for name, value in vars(Plan).items():
            if isinstance(value, functools.cached_property):
                getattr(self, name)

    @functools.cached_property
    def parts(self) -> tuple[Part, ...]:
        """All parts in the order in which they act at one stage."""
        return self.score, self.head_mixing, self.prior, self.selection, self.span

    @functools.cached_property
    def on_queries(self) -> tuple[Part, ...]:
        """Parts that score distances for every query."""
        return tuple(part for part in self.parts if part.scores_queries)

    @functools.cached_property
    def on_logits(self) -> tuple[Part, ...]:
        """Changes of unmasked logits."""
        return tuple(part for part in (self.head_mixing, self.prior) if Stage.LOGITS in part.stages)

    @functools.cached_property
    def on_masked_logits(self) -> tuple[Part, ...]:
        """Changes of masked logits."""
        return tuple(part for part in self.parts if Stage.MASKED_LOGITS in part.stages)

    @functools.cached_property
    def on_weights(self) -> tuple[Part, ...]:
        """Changes of weights."""
        return tuple(part for part in self.parts if Stage.WEIGHTS in part.stages)

    @functools.cached_property
    def on_mixed_weights(self) -> tuple[Part, ...]:
        """Mixtures of the weights of all heads."""
        return tuple(part for part in self.parts if Stage.MIXED_WEIGHTS in part.stages)

    @functools.cached_property
    def hands(self) -> HandUp:
        """What the layer above gets."""
        return self.prior.hands

    @functools.cached_property
    def explicit(self) -> bool:
        """Whether logits or weights have to be seen or changed; otherwise fused forms compute the same."""
        stages = self.on_logits or self.on_masked_logits or self.on_weights or self.on_mixed_weights
        by_pair = Acts.FACTOR | Acts.KEY_SCORE | Acts.LABEL | Acts.VALUE
        own = not self.score.plain or (self.store is not None and self.store.weighs)
        own = own or self.prior.takes_weights
        return bool(stages) or self.hands is not HandUp.NOTHING or bool(self.position.acts & by_pair) or own

    @functools.cached_property
    def turns(self) -> bool:
        """Whether queries and keys are turned by their place."""
        return Acts.ROTATION in self.position.acts

    @functools.cached_property
    def scores_distances(self) -> bool:
        """Whether scores depend on the distance."""
        return self.position_knows_distances or any(part.scores_distances for part in self.parts)

    @functools.cached_property
    def position_knows_distances(self) -> bool:
        """Whether the position makes something of distances besides turns and values."""
        return bool(self.position.acts & (Acts.FACTOR | Acts.SCORE | Acts.KEY_SCORE))

    @functools.cached_property
    def ordered(self) -> bool:
        """Whether the output of a query depends on which query it is, or its keys are its own."""
        own = self.chooser is not None or self.store is not None or bool(self.on_queries)
        return self.explicit or self.scores_distances or self.turns or self.pattern.sinks > 0 or own

    @functools.cached_property
    def judges_weights(self) -> bool:
        """Whether an auxiliary loss reads the weights."""
        return any(objective.reads_weights for objective in self.objectives)

    def lost_under(self, score: Score) -> set[Feature]:
        """What other mechanisms of the layer need of the score of this plan and do not find in one in its place."""
        first, heads, groups = self.score, self.score.dims.heads, self.score.dims.kv_heads
        if any(part is first for part in score.modules()):
            return set()

        def shapes(each: Score, channels: int) -> list[torch.Size]:
            with torch.device("cpu"):  # some operations on tensors without storage load PyTorch's compiler, 5 s
                query = each.split_queries(torch.empty(1, 2, each.query_width + heads * channels))
                parts = query, *each.split(torch.empty(1, 2, each.key_width + groups * channels))
            return [part.shape for part in parts]

        if type(first) is not Score or shapes(score, 0) != shapes(first, 0):
            return {Feature.PRODUCTS, Feature.COMMON_KEYS, Feature.SHARED_KEYS, Feature.CHANNELS, Feature.RETRIEVAL}
        alike = (score.query_width, score.key_width) == (first.query_width, first.key_width)
        lost = set() if alike else {Feature.RETRIEVAL}
        try:
            fits = shapes(score, 1) == shapes(first, 1)
        except RuntimeError:  # no room for further channels
            fits = False
        return lost if fits else {*lost, Feature.CHANNELS}
