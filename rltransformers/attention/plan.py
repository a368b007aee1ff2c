"""The plan of attention: its parts, and what follows from them.

Axes: B batch, H heads, T tokens, S keys, L distances, K head width.
"""

from dataclasses import dataclass, field

import torch

from rltransformers.attention.reach import Pattern
from rltransformers.attention.roles import Chooser, Combine, HandUp, Objective, Part, Score, Stage
from rltransformers.attention.store import Store
from rltransformers.core.spec import Feature
from rltransformers.positions.interface import Acts, Position


@dataclass(eq=False)
class Plan:
    """The parts in their order, already built, and what follows from them.

    Attributes:
        pattern: who may look at whom.
        score: how queries meet keys.
        position: encoding inside attention.
        chooser: picks the keys of every query before any product; None for all that the pattern allows.
        store: retrieves from what lies behind the window; None where nothing is kept there.
        cap, selection, prior, head_mixing, span: parts of the stages.
        combine: what joins the outputs of the heads in place of a projection, or None.
        dropout: share of the weights that is set to 0 in training.
        objectives: auxiliary losses that read what is computed.
        on_queries: parts that score distances for every query.
        on_logits, on_masked_logits, on_weights, on_mixed_weights: parts that change these.
        hands: what the layer above gets.
        by_token: True if what comes from below, or the prior's scores, are rows of tokens.
        judges_weights: True if an auxiliary loss reads the weights.
        turns: True if queries and keys are turned by their place.
        position_knows_distances: True if the position makes something of distances besides turns and values.
        scores_distances: True if scores depend on the distance.
        explicit: True if logits or weights have to be seen or changed; otherwise fused forms compute the same.
        ordered: True if unwanted queries cannot be dropped early, because scores depend on the query's index.
    """

    pattern: Pattern
    score: Score
    position: Position = field(default_factory=Position)
    chooser: Chooser | None = None
    store: Store | None = None
    cap: Part = field(default_factory=Part)
    selection: Part = field(default_factory=Part)
    prior: Part = field(default_factory=Part)
    head_mixing: Part = field(default_factory=Part)
    span: Part = field(default_factory=Part)
    combine: Combine | None = None
    dropout: float = 0.0
    objectives: tuple[Objective, ...] = ()

    def __post_init__(self) -> None:
        """Settle what follows from the parts, once; a plan does not change afterwards."""
        position = self.position
        parts: tuple[Part, ...] = self.score, self.cap, self.head_mixing, self.prior, self.selection, self.span
        self.parts = parts  # in the order in which they act at one stage
        self.on_queries = [part for part in parts if part.scores_queries]
        self.on_logits = [part for part in (self.cap, self.head_mixing, self.prior) if Stage.LOGITS in part.stages]
        self.on_masked_logits = [part for part in parts if Stage.MASKED_LOGITS in part.stages]
        self.on_weights = [part for part in parts if Stage.WEIGHTS in part.stages]
        self.on_mixed_weights = [part for part in parts if Stage.MIXED_WEIGHTS in part.stages]
        self.hands = self.prior.hands
        self.by_token = self.hands is HandUp.DISTANCES or self.prior.scores_tokens
        self.judges_weights = any(objective.reads_weights for objective in self.objectives)
        self.turns = Acts.ROTATION in position.acts
        self.position_knows_distances = bool(position.acts & (Acts.FACTOR | Acts.SCORE | Acts.KEY_SCORE))
        self.scores_distances = self.position_knows_distances or any(part.scores_distances for part in parts)
        self.explicit = bool(
            any(part.stages for part in parts)
            or self.hands is not HandUp.NOTHING
            or position.acts & (Acts.FACTOR | Acts.KEY_SCORE | Acts.LABEL | Acts.VALUE)
            or not self.score.plain
            or (self.store is not None and self.store.weighs)
            or self.prior.takes_weights
        )
        own = self.chooser is not None or self.store is not None or bool(self.on_queries)
        own = own or self.prior.scores_tokens or self.score.sink is not None
        self.ordered = self.explicit or self.scores_distances or self.turns or self.pattern.sinks > 0 or own

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
