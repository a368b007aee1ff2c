"""The roles that a part of attention can play; parts meet nowhere else.

Axes: B batch, H heads, T tokens, N keys of a group, S keys of all groups side by side, C chosen keys, L distances, D
    model width, K head width, V value width.

The order inside one layer: scores of content, multiplied by distance (positions), plus those by distance (positions,
priors); changes of the unmasked logits (talking heads, then the logits of the layer below); the mask of pattern and
episode; changes of the masked logits (selections); softmax; changes of the weights (spans, talking heads); dropout;
values.
"""

from dataclasses import dataclass
from enum import Flag, auto

from jaxtyping import Float, Int
from torch import Tensor, nn

from rltransformers.attention.columns import Columns
from rltransformers.attention.reach import Reach
from rltransformers.functional.call import Call
from rltransformers.functional.keys import At, Place


class Stage(Flag):
    """Where a part changes logits or weights; each of them needs these explicit."""

    NONE = 0
    LOGITS = auto()
    MASKED_LOGITS = auto()
    WEIGHTS = auto()
    MIXED_WEIGHTS = auto()


@dataclass(frozen=True)
class View:
    """What a stage may know besides the logits.

    Attributes:
        h: normalised inputs of the queries.
        columns: distance and visibility of every key.
        below: logits that the layer below handed on, or None.
    """

    h: Float[Tensor, "B T D"]
    columns: Columns
    below: Tensor | None


class Part(nn.Module):
    """Does nothing; a part names the stages where it acts and overrides their methods.

    Attributes:
        stages: where it changes logits or weights.
        scores_distances: whether it adds to the scores by distance.
        hands_on: whether the layer above needs the unmasked logits.
    """

    stages = Stage.NONE
    scores_distances = False
    hands_on = False

    def of_distances(self, distance: Int[Tensor, " L"], like: Tensor) -> Float[Tensor, "L H"]:
        """Additive scores of the distances under today's weights, in the dtype of ``like``."""
        raise NotImplementedError("a part that scores distances defines of_distances")

    def logits(self, logits: Float[Tensor, "B H T S"], view: View) -> Float[Tensor, "B H T S"]:
        """LOGITS: before any mask."""
        raise NotImplementedError("a part that changes logits defines logits")

    def masked_logits(self, logits: Float[Tensor, "B H T S"], view: View) -> Float[Tensor, "B H T S"]:
        """MASKED_LOGITS: forbidden keys carry the lowest finite number."""
        raise NotImplementedError("a part that changes masked logits defines masked_logits")

    def weights(self, weights: Float[Tensor, "B H T S"], view: View) -> Float[Tensor, "B H T S"]:
        """WEIGHTS: after the softmax."""
        raise NotImplementedError("a part that changes weights defines weights")

    def mixed_weights(self, weights: Float[Tensor, "B H T S"], view: View) -> Float[Tensor, "B H T S"]:
        """MIXED_WEIGHTS: when every head has its own; rows need not sum to 1 afterwards."""
        raise NotImplementedError("a part that mixes weights defines mixed_weights")

    def tell(self, h: Float[Tensor, "B T D"], call: Call) -> None:
        """Hand auxiliary losses and metrics to ``call.probe``; only called when it listens."""

    def constrain_(self) -> None:
        """Bring parameters back into their range after an optimiser step."""


@dataclass(frozen=True)
class Heads:
    """Keys and values of one group by head; [B, H, T, N, ...] where every token has keys of its own.

    Attributes:
        shift: added to the scaled products of queries and keys, or None.
    """

    k: Float[Tensor, "B H *T N K"]
    v: Float[Tensor, "B H *T N V"]
    place: Place
    shift: Float[Tensor, "B H T N"] | None = None

    @property
    def per_token(self) -> bool:
        """Whether every token has keys of its own."""
        return self.k.dim() == 5


@dataclass(frozen=True)
class Selected:
    """The keys that every query reads.

    Attributes:
        index: rows of the window.
        at: their distances and which of them are real.
        shift: added to their scaled products with the queries, or None.
        others: further keys that the chooser made, such as the nodes of a tree; not turned.
    """

    index: Int[Tensor, "B h T C"]
    at: At
    shift: Float[Tensor, "B H T C"] | None = None
    others: tuple[Heads, ...] = ()


class Chooser(nn.Module):
    """Chooses the keys of every query before any product; it may keep a state beside the rows of the memory.

    Attributes:
        reach: how far back rows have to be kept, of a chooser that is itself the pattern of its layer.
    """

    reach: Reach | None = None

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """State tensors without the batch axis."""
        return {}

    def prepare(self, heads: Float[Tensor, "B H *n K"]) -> Float[Tensor, "B H *n K"]:
        """Queries or keys as they are compared; themselves by default."""
        return heads

    def choose(
        self, q: Float[Tensor, "B H T K"], window: Heads, state: dict[str, Tensor], call: Call
    ) -> tuple[Selected, dict[str, Tensor]]:
        """Keys for the queries, both prepared and not turned, and the state after the call.

        Pattern and episodes take away from them afterwards; a query that nothing is left for reads nothing.
        """
        raise NotImplementedError("a chooser defines choose")

    def maintain(self) -> None:
        """Learn from what was seen since the last call of this; only between two rounds of collecting and learning."""
