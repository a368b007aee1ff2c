"""The roles that a part of attention can play; parts meet nowhere else.

Axes: B batch, H heads, G key-value heads, T tokens, N keys of a group, S keys of all groups side by side, C chosen
    keys, L distances, D model width, K head width, V value width, Q and E numbers of a query row and of a key row, O
    numbers that the projection makes of a layer input, R rows of all groups one after the other, f pairs of channels
    that turn.

The order inside one layer: scores of content, multiplied by distance (positions), plus those by distance (positions,
priors), for all queries alike or for each; changes of the unmasked logits (a cap of the score, talking heads, then the
logits of the layer below); the mask of pattern and episode; changes of the masked logits (selections); softmax, with a
sink in its sum; changes of the weights (spans, talking heads); dropout; values.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, Flag, auto
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.attention.reach import Columns, Pattern, Reach
from rltransformers.core.spec import Spec
from rltransformers.functional import windows
from rltransformers.functional.call import Call, Tokens
from rltransformers.functional.keys import At, Past, Place, Ring, Rows
from rltransformers.functional.modules import normalize_rms
from rltransformers.mixers.interface import Dims
from rltransformers.positions.interface import Position


class Stage(Flag):
    """Where a part changes logits or weights; each of them needs these explicit."""

    NONE = 0
    LOGITS = auto()
    MASKED_LOGITS = auto()
    WEIGHTS = auto()
    MIXED_WEIGHTS = auto()


@dataclass(frozen=True)
class View:
    """Facts that a stage may use besides the logits.

    Attributes:
        h: normalized inputs of the queries.
        columns: distance and visibility of every key.
        below: logits, or weights, that the layer below handed on, or None.
    """

    h: Float[Tensor, "B T D"]
    columns: Columns
    below: Tensor | None


class HandUp(Enum):
    """What a layer hands to the layer above, as ``View.below``.

    NOTHING; LOGITS: unmasked logits [B, H, T, S]; DISTANCES: the same of the window by distance [B, T, H, L], 0 where
    no key is visible; WEIGHTS: weights [B, H, T, S], without dropout. Logits and weights stand block by block where a
    call is cut.
    """

    NOTHING = auto()
    LOGITS = auto()
    DISTANCES = auto()
    WEIGHTS = auto()


class Part(nn.Module):
    """Does nothing; a part names the stages where it acts and overrides their methods.

    Attributes:
        stages: where it changes logits or weights.
        scores_distances: whether it adds to the scores by distance.
        scores_queries: whether it adds to the scores by distance something else for every query.
        scores_tokens: whether it adds to them something else for every token, made of the layer's inputs and a state;
            of priors alone.
        hands: what the layer above gets; of priors alone.
        mixes_values: whether it changes the values of all rows, by what the layer below hands up; of priors alone.
        takes_weights: whether the layer has no queries and keys and reads values with the weights of the layer below.
        group: number of layers after which such layers repeat.
    """

    stages = Stage.NONE
    scores_distances = False
    scores_queries = False
    scores_tokens = False
    hands = HandUp.NOTHING
    mixes_values = False
    takes_weights = False
    group = 1

    def __init__(self, dims: Dims | None = None, options: Any = None) -> None:
        super().__init__()

    def of_distances(self, distance: Int[Tensor, " L"], like: Tensor) -> Float[Tensor, "L H"]:
        """Additive scores of the distances under today's weights, in the dtype of ``like``."""
        raise NotImplementedError("a part that scores distances defines of_distances")

    def of_queries(
        self, q: Float[Tensor, "B H T K"], distance: Int[Tensor, " L"], tokens: Tokens
    ) -> Float[Tensor, "B H T L"]:
        """Additive scores of the distances for every query, in the dtype of the queries, which are not turned."""
        raise NotImplementedError("a part that scores queries defines of_queries")

    def of_tokens(
        self, h: Float[Tensor, "B T D"], state: dict[str, Tensor], call: Call
    ) -> tuple[Float[Tensor, "B T H L"], dict[str, Tensor]]:
        """Additive scores of the distances 0 .. L - 1 for every token, and the state after the call.

        Keys further away than L - 1 count as if they stood there.
        """
        raise NotImplementedError("a part that scores tokens defines of_tokens")

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

    def state_shapes(self, length: int) -> dict[str, tuple[int, ...]]:
        """State tensors without the batch axis, of a part that hands on ``DISTANCES`` or scores tokens.

        The window has the distances 0 .. length - 1.
        """
        return {}

    def carry(
        self, below: Tensor | None, state: dict[str, Tensor], call: Call
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Rows of a view, made from those of the layer below, [B, T, ...], and the state after the call."""
        raise NotImplementedError("a part that hands on logits by distance defines carry")

    def mixed_values(self, past: Past, below: Tensor | None, width: int) -> tuple[Past, Float[Tensor, "B R V"]]:
        """Rows whose last ``width`` numbers, the values, are changed, and what the layer above gets."""
        raise NotImplementedError("a part that mixes values defines mixed_values")

    def constrain_(self) -> None:
        """Bring parameters back into their range after an optimizer step."""

    def narrowed(self, pattern: Pattern) -> Pattern:
        """The part of the layer's pattern that is left; asked once, when the layer is built."""
        return pattern


NO_PRIOR = Spec("B0", "none", "prior", "-", "Scores are content and position only.", Part, formula="l_ts")


@dataclass(frozen=True)
class Judged:
    """Result of an objective.

    Attributes:
        loss: by head, or for all heads together.
        counts: which of them enter the mean.
    """

    loss: Float[Tensor, "B h T"]
    counts: Bool[Tensor, "B h T"]


class Objective:
    """An auxiliary loss that reads what attention computed; asked only when somebody listens.

    Attributes:
        name: of the loss, as in a config.
        reads_weights: whether weights have to be explicit.
    """

    name: str
    reads_weights = False

    def report(self, value: Judged | Tensor | None, call: Call) -> None:
        """Add a loss to the record: its mean over the valid tokens that the objective counts."""
        if value is None:
            return
        if isinstance(value, Tensor):
            value = Judged(value[:, None], torch.ones_like(value, dtype=torch.bool)[:, None])
        counts = (value.counts & call.tokens.valid()[:, None]).to(value.loss.dtype)
        number = counts.sum()
        call.probe.loss(self.name, (value.loss * counts).sum() / number.clamp(min=1), number)

    def of_values(self, values: Float[Tensor, "B G T V"]) -> Float[Tensor, "B T"] | None:
        """From the values that the tokens themselves offer; None where these do not matter."""
        return None

    def of_outputs(self, outputs: Float[Tensor, "B H T V"]) -> Float[Tensor, "B T"] | None:
        """From what the heads read."""
        return None

    def of_weights(
        self, weights: Float[Tensor, "B H T S"], columns: Columns, tokens: Tokens
    ) -> Judged | Float[Tensor, "B T"] | None:
        """From the weights of every head."""
        return None


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

    def distance_back(self, behind: Int[Tensor, " T"], edge: int) -> Int[Tensor, "..."]:
        """Tokens back from the last token of a call, which its tokens lie ``behind``; with the axes of k."""
        place = self.place
        if isinstance(place, Ring):
            return place.age
        if isinstance(place, Rows):
            return windows.descending(self.k.shape[2], self.k.device)
        if self.per_token:
            return (behind[:, None] + place.distance.clamp(max=place.farthest or edge))[:, None]
        return place.distance[:, None, -1]


def joint_values(v: Float[Tensor, "B G *T N V"], count: int) -> Float[Tensor, "B G *T N W"]:
    """Values that ``count`` neighboring heads have side by side, for each of them."""
    joint = v.movedim(1, -2).unflatten(-2, (-1, count)).flatten(-2).movedim(-2, 1)
    return joint.repeat_interleave(count, 1)


def joined_heads(mixed: Float[Tensor, "B H T V"]) -> Float[Tensor, "B T HV"]:
    """Outputs of all heads side by side."""
    batch, heads, time, width = mixed.shape
    if time == 1:
        return mixed.reshape(batch, 1, heads * width)
    return mixed.transpose(1, 2).reshape(batch, time, heads * width)


def turn_rows(
    position: Position, q: Float[Tensor, "B H T K"], groups: list[Heads], horizon: int, call: Call
) -> tuple[Float[Tensor, "B H T K"], list[Heads]]:
    """Turn queries and keys by how far they lie behind the last token of the call; only differences matter."""

    def circle(behind: Int[Tensor, "*n"]) -> Float[Tensor, "*n 2 f"]:
        table = call.tables.get(f"{call.place}.circle")
        return position.circle(behind, q) if table is None else table[behind.clamp(0, len(table) - 1)]

    behind = windows.descending(q.shape[2], q.device)
    keys = [position.turn(group.k, circle(group.distance_back(behind, horizon + 1))) for group in groups]
    return position.turn(q, circle(behind)), [replace(group, k=k) for group, k in zip(groups, keys, strict=True)]


class QueryKeyNorm(nn.Module):
    """``x / sqrt(mean x^2 + eps) * gain`` of queries and keys, head by head; the heads share a gain.

    Source: arXiv 2302.05442, there LayerNorm.
    """

    no_decay = ("query_gain", "key_gain")

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.query_gain, self.key_gain = nn.Parameter(torch.ones(head_dim)), nn.Parameter(torch.ones(head_dim))

    def queries(self, rows: Float[Tensor, "B T Q"]) -> Float[Tensor, "B T Q"]:
        """Normalized queries."""
        return normalize_heads(rows, self.query_gain)

    def keys(self, rows: Float[Tensor, "*n X"]) -> Float[Tensor, "*n X"]:
        """Normalized keys: what a memory keeps."""
        return normalize_heads(rows, self.key_gain)


def normalize_heads(rows: Float[Tensor, "*n X"], gain: Float[Tensor, " K"]) -> Float[Tensor, "*n X"]:
    """Rows whose heads are normalized."""
    return normalize_rms(rows.unflatten(-1, (-1, len(gain))), gain).flatten(-2).to(rows.dtype)


class Score(Part):
    """How queries meet keys: by scaled dot products, unless a method says otherwise.

    One projection of layer inputs, with the queries' own outputs first, gives what query rows and key rows are made of.

    Attributes:
        own: outputs of the projection that only queries are made of.
        projected: all of its outputs.
        query_width, key_width: Q and E.
        plain: whether the content of logits is scaled products alone, which need not be explicit.
        sink: logit of every head that counts in the sum of its softmax and reads nothing, or None.
        norm: of query rows, and of keys as a memory keeps them, or None.
        has_keys: whether key rows hold keys and, behind them, values; otherwise ``split`` makes both of them.
        few: calls of up to so many tokens read key rows as they are, by ``absorbed`` and ``of_latents``.
    """

    plain = True
    has_keys = True
    few = 0

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.dims = dims
        self.sink: nn.Parameter | None = None
        self.norm: QueryKeyNorm | None = None
        self.own = self.query_width = dims.heads * dims.head_dim
        self.key_width = dims.kv_heads * (dims.head_dim + dims.value_dim)

    @property
    def projected(self) -> int:
        """O."""
        return self.own + self.key_width

    def rows(
        self, made: Float[Tensor, "B T O"], h: Float[Tensor, "B T D"]
    ) -> tuple[Float[Tensor, "B T Q"], Float[Tensor, "B T E"]]:
        """Query rows and key rows of tokens with inputs ``h``."""
        query, keys = made.split_with_sizes([self.own, self.key_width], -1)
        return query, keys

    def key_rows(self, made: Float[Tensor, "B *n X"]) -> Float[Tensor, "B *n E"]:
        """Key rows of what the projection makes besides the queries' own."""
        return made

    def normal_rows(self, made: Float[Tensor, "B T O"], h: Float[Tensor, "B T D"]) -> tuple[Tensor, Tensor]:
        """Query rows and key rows, normalized where the score has a norm."""
        query, keys = self.rows(made, h)
        norm = self.norm
        return (query, keys) if norm is None else (norm.queries(query), self.with_keys(keys, norm.keys))

    def normal_keys(self, made: Float[Tensor, "B *n X"]) -> Float[Tensor, "B *n E"]:
        """Key rows alone, normalized where the score has a norm."""
        keys = self.key_rows(made)
        return keys if self.norm is None else self.with_keys(keys, self.norm.keys)

    def split_queries(self, query: Float[Tensor, "B T Q"]) -> Float[Tensor, "B H T K"]:
        """Queries head by head."""
        width = query.shape[-1] // self.dims.heads
        if query.shape[1] == 1:  # one token needs no transposition
            return query.view(query.shape[0], self.dims.heads, 1, width)
        return query.view(*query.shape[:2], self.dims.heads, width).transpose(1, 2)

    def split(self, rows: Float[Tensor, "B *T N E"]) -> tuple[Float[Tensor, "B g *T N K"], Float[Tensor, "B G *T N V"]]:
        """Keys and values head by head; heads of queries may share them."""
        groups, values = self.dims.kv_heads, self.dims.kv_heads * self.dims.value_dim
        keys = rows.shape[-1] - values
        alike = rows.dim() == 3 and keys == values
        if alike and not rows.requires_grad:  # fewer views; their gradients would be copied once more
            k, v = rows.unflatten(-1, (2, groups, self.dims.value_dim)).permute(2, 0, 3, 1, 4).unbind(0)
        else:
            parts = rows.split_with_sizes([keys, values], -1)
            k, v = (part.unflatten(-1, (groups, -1)).movedim(-2, 1) for part in parts)
        return k, v

    def keys_of(self, rows: Float[Tensor, "*n E"]) -> tuple[Float[Tensor, "*n G K"], Float[Tensor, "*n G V"]]:
        """Keys and values of rows by key-value head."""
        groups, values = self.dims.kv_heads, self.dims.kv_heads * self.dims.value_dim
        k, v = rows.split_with_sizes([rows.shape[-1] - values, values], -1)
        return k.unflatten(-1, (groups, -1)), v.unflatten(-1, (groups, -1))

    def absorbed(self, query: Float[Tensor, "B H T K"], past: Past) -> tuple[Float[Tensor, "B H T C"], list[Heads]]:
        """Queries, turned or not, and rows as the one key and the one value of all heads, C and c numbers wide.

        Products are divided by sqrt(C) afterwards. ``of_latents`` takes what heads read.
        """
        raise NotImplementedError("a score that reads rows as they are defines absorbed")

    def of_latents(self, out: Float[Tensor, "B H T c"]) -> Float[Tensor, "B H T V"]:
        """What heads read from what they read of the one value."""
        raise NotImplementedError("a score that reads rows as they are defines of_latents")

    def with_keys(self, rows: Float[Tensor, "B S E"], change: Callable[[Tensor], Tensor]) -> Float[Tensor, "B S F"]:
        """Rows whose keys, those of all heads side by side, went through ``change``; values stay as they are."""
        values = self.dims.kv_heads * self.dims.value_dim
        k, v = rows.split_with_sizes([rows.shape[-1] - values, values], -1)
        return torch.cat([change(k), v], -1)

    def settled(
        self,
        query: Float[Tensor, "B H T K"],
        groups: list[Heads],
        logits: Callable[[Tensor], Tensor],
        visible: Bool[Tensor, "b h t S"],
    ) -> Float[Tensor, "B H T K"]:
        """Queries to read with; unchanged by default. ``logits`` gives the logits of any queries."""
        return query

    def content(self, query: Float[Tensor, "B H T K"], group: Heads) -> Float[Tensor, "B H T N"]:
        """Scores by content."""
        scale = query.shape[-1] ** -0.5
        if group.per_token:
            return (query[..., None, :] * group.k).sum(-1) * scale
        return query @ group.k.transpose(-1, -2) * scale

    def by_distance(
        self, query: Float[Tensor, "B H T K"], distance: Int[Tensor, " L"]
    ) -> Float[Tensor, "B H T L"] | None:
        """Scores of the listed distances by the query alone, or None."""
        return None

    def forward(
        self,
        weight: Float[Tensor, "O D"],
        bias: Float[Tensor, " O"],
        h: Float[Tensor, "B T D"],
        rows: Float[Tensor, "B S D"],
        seen: Bool[Tensor, "B S"],
        prepare: Callable[[Tensor], Tensor],
    ) -> Float[Tensor, "B T X"]:
        """Values that queries of ``h`` read from ``rows`` by content, heads side by side; ``prepare``: by a chooser."""
        query, _ = self.normal_rows(F.linear(h, weight, bias), h)
        k, v = self.split(self.normal_keys(F.linear(rows, weight[self.own :], bias[self.own :])))
        repeats = [self.dims.heads // part.shape[1] for part in (k, v)]
        k, v = (part.repeat_interleave(n, 1) for part, n in zip((prepare(k), v), repeats, strict=True))
        group, visible = Heads(k, v, Rows()), seen[:, None, None]
        q = prepare(self.split_queries(query))
        q = self.settled(q, [group], lambda other: self.content(other, group), visible)
        logits = self.content(q, group)
        weights = logits.masked_fill(~visible, torch.finfo(logits.dtype).min).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2)


@dataclass(frozen=True)
class HeadOptions:
    """Options of a head mechanism that makes queries and keys, or values, of another width."""

    def inside(self, dims: Dims) -> Dims:
        """The sizes that parts of attention meet."""
        return dims


class Combine(nn.Module):
    """How the outputs of heads, side by side, become the output of the layer in place of a projection.

    Attributes:
        reads_inputs: whether ``forward`` takes the normalized inputs [B, T, D] of the same tokens, too.
        joint_values: neighboring heads that each read the values of all of them, side by side.
    """

    reads_inputs = False
    joint_values = 1

    def forward(self, heads: Float[Tensor, "B T X"]) -> Float[Tensor, "B T D"]:
        """Token by token."""
        raise NotImplementedError("what combines heads defines forward")


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

    def score(self, dims: Dims) -> Score:
        """How queries meet the keys that were chosen for them."""
        return Score(dims)

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
