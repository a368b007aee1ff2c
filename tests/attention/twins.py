"""Slow twins of single mechanisms, written from the formulas with loops over tokens, heads and keys.

They share nothing with the library but the config and the parameters, which they read by name. Every row of ``rows.py``
carries the twin of its entry, a record or a function by axis; ``references.py`` walks through the layers with them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rltransformers.backbone import Backbone, BackboneConfig
from rltransformers.core.spec import Choice
from rltransformers.laws.streams import elements_of

if TYPE_CHECKING:
    from tests.attention.references import Walk

Rows = list[Tensor]
Logits = dict[tuple[int, int, "Key"], Tensor]
Key = tuple[str, int, int]
"""Kind ("token", "slot", or "node" with its level), index, distance."""


class Reader:
    """Parameters of one layer by short names, and the settings they belong to.

    Args:
        find: the twin of an entry by axis and name.
    """

    def __init__(self, backbone: Backbone, layer: int, find: Callable[[str, str], Any]) -> None:
        self.config: BackboneConfig = backbone.config
        self.layer, self.find, self.backbone = layer, find, backbone
        self.width = backbone.width
        self.tensors = dict(backbone.named_parameters()) | dict(backbone.named_buffers())
        own = f"layers.{layer}."
        self.at = own if any(name.startswith(own) for name in self.tensors) else "layers.0."
        self.distances: dict[int, Tensor] = {}
        self.heads = self.config.heads
        self.head_dim = self.config.head_dim or self.width // self.heads
        self.value_dim = self.config.value_dim or self.head_dim

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[self.at + name]

    def get(self, name: str) -> Tensor | None:
        """None where the parameter does not exist."""
        return self.tensors.get(self.at + name)

    def query_of(self, row: Tensor) -> Tensor:
        """Queries of all heads."""
        return self.projected_by(slice(None, self.heads * self.head_dim), row)

    def key_value_of(self, row: Tensor) -> Tensor:
        """Keys of all groups, then their values."""
        return self.projected_by(slice(self.heads * self.head_dim, None), row)

    def projected_by(self, part: slice, row: Tensor) -> Tensor:
        """Some outputs of the one projection, with their biases where there are any."""
        out, bias = self["mixing.mixer.project.weight"][part] @ row, self.get("mixing.mixer.project.bias")
        assert (bias is not None) == self.config.attention_bias
        return out if bias is None else out + bias[part]

    def projected(self, distance: int) -> Tensor:
        """W_R PE(d) of every head, computed once."""
        if distance not in self.distances:
            matrix = self["mixing.mixer.position.project.weight"]
            self.distances[distance] = (matrix @ sinusoid_at(distance, self.width)).view(self.heads, -1)
        return self.distances[distance]

    def choice(self, axis: str) -> Choice:
        """The choice of an axis in this layer."""
        layer, common = self.config.choices.layer(self.layer), self.config.choices
        found: Choice = getattr(layer, axis) if hasattr(layer, axis) else getattr(common, axis)
        return found

    def twin(self, axis: str) -> Any:
        """The twin of the choice of an axis in this layer."""
        return self.find(axis, self.choice(axis).name)

    def options(self, axis: str) -> Any:
        """The options of the choice of an axis in this layer."""
        return self.choice(axis).options

    def positions(self) -> list[tuple[Position, Any]]:
        """Twin and options of every encoding."""
        return [(self.find("position", choice.name), choice.options) for choice in self.config.choices.positions]

    def prepare(self, join: str, row: Tensor) -> Tensor:
        """The input of a submodule."""
        residual: Residual = self.twin("residual")
        return residual.prepare(self, join, row)

    def combine(self, join: str, x: Tensor, y: Tensor) -> Tensor:
        """The stream after a submodule."""
        residual: Residual = self.twin("residual")
        return residual.combine(self, join, x, y)


def sinusoid_at(place: float, width: int, base: float = 10_000.0) -> Tensor:
    """sin and cos in turn; systems with an odd width drop the last cosine."""
    even = width + width % 2
    numbers = []
    for f in range(even // 2):
        angle = place * base ** (-2 * f / even)
        numbers += [math.sin(angle), math.cos(angle)]
    return torch.tensor(numbers[:width])


def sigmoid(number: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + torch.exp(-number))


# Positions


def unchanged(reader: Reader, options: Any, row: Tensor, p: int) -> Tensor:
    """A row as it is."""
    return row


def content(reader: Reader, options: Any, head: int, q: Tensor, k: Tensor, distance: int) -> Tensor:
    """q k / sqrt(Dh)."""
    return q @ k / math.sqrt(len(q))


@dataclass(frozen=True)
class Position:
    """What an encoding does to the input at place p, to the score of one query and one key, and to a value.

    Attributes:
        every: the input of a layer at place p, by the number of the layer from 1 on, where no depth tells the number.
        source: what queries and keys are made of at place p.
        beside: further channels of the query ("query") or the key ("key") of a head at place p.
    """

    embed: Callable[[Reader, Any, Tensor, int], Tensor] = unchanged
    every: Callable[[Reader, Any, Tensor, int, int], Tensor] | None = None
    source: Callable[[Reader, Any, Tensor, int], Tensor] = unchanged
    beside: Callable[[Reader, Any, str, int, int], Tensor] | None = None
    score: Callable[[Reader, Any, int, Tensor, Tensor, int], Tensor] = content
    value: Callable[[Reader, Any, Tensor, int], Tensor] = unchanged
    label: Callable[[Reader, Tensor, Key], Tensor] | None = None


def with_sinusoid(reader: Reader, options: Any, row: Tensor, p: int) -> Tensor:
    """Vaswani et al. 2017, section 3.5."""
    scale = math.sqrt(len(row)) if options.scale_input else 1.0
    return row * scale + sinusoid_at(p, len(row), options.base)


def with_learned_base(reader: Reader, options: Any, row: Tensor, p: int) -> Tensor:
    """Vaswani et al. 2017, section 3.5, with a base of exp(log(1 + exp(raw)))."""
    even = len(row) + len(row) % 2
    log_base = torch.log(1 + torch.exp(reader.tensors["input_positions.0.raw"]))
    numbers = []
    for f in range(even // 2):
        angle = p * torch.exp(-2 * f / even * log_base)
        numbers += [torch.sin(angle), torch.cos(angle)]
    return row + torch.stack(numbers[: len(row)])


def with_place(reader: Reader, options: Any, row: Tensor, p: int) -> Tensor:
    """A row of a table."""
    return row + reader.tensors["input_positions.0.table.weight"][p]


def with_timestep(reader: Reader, options: Any, row: Tensor, p: int) -> Tensor:
    """A row of a table, the same for all tokens of a step."""
    return with_place(reader, options, row, p // reader.config.tokens_per_step)


def trxl_score(reader: Reader, options: Any, head: int, q: Tensor, k: Tensor, distance: int) -> Tensor:
    """Dai et al. 2019, section 3.3."""
    names = ("content_bias", "position_bias")
    u, v = (reader[f"mixing.mixer.position.{name}"][head, 0] for name in names)
    return ((q + u) @ k + (q + v) @ reader.projected(distance)[head]) / math.sqrt(len(q))


def shaw_score(reader: Reader, options: Any, head: int, q: Tensor, k: Tensor, distance: int) -> Tensor:
    """Shaw et al. 2018, equation 4."""
    table = reader["mixing.mixer.position.keys"]
    return q @ (k + table[min(distance, len(table) - 1)]) / math.sqrt(len(q))


def shaw_value(reader: Reader, options: Any, row: Tensor, distance: int) -> Tensor:
    """Shaw et al. 2018, equation 3."""
    table = reader.get("mixing.mixer.position.values")
    assert (table is not None) == options.values
    return row if table is None else row + table[min(distance, len(table) - 1)]


def alibi_score(reader: Reader, options: Any, head: int, q: Tensor, k: Tensor, distance: int) -> Tensor:
    """Press et al. 2021, section 3; slopes of heads beyond a power of two lie between the others."""
    lower = 2 ** math.floor(math.log2(reader.heads))
    place = (head + 1) / lower if head < lower else (2 * (head - lower) + 1) / (2 * lower)
    return content(reader, options, head, q, k, distance) - 2 ** (-8 * place) * distance


def t5_score(reader: Reader, options: Any, head: int, q: Tensor, k: Tensor, distance: int) -> Tensor:
    """Raffel et al. 2019, section 2.1: half of the buckets are exact, the others logarithmic."""
    table = reader.tensors["layers.0.mixing.mixer.position.table"]
    buckets = table.shape[1]
    exact = buckets // 2
    bucket = distance
    if distance >= exact:
        log = math.log(distance / exact) / math.log(options.max_distance / exact) * (buckets - exact)
        bucket = min(buckets - 1, exact + math.floor(log + 1e-9))
    return content(reader, options, head, q, k, distance) + table[head, bucket]


def rope_score(reader: Reader, options: Any, head: int, q: Tensor, k: Tensor, distance: int) -> Tensor:
    """Su et al. 2021: q turned by the angle of the distance, which equals turning q and k by their places."""
    dims = options.dims or len(q) - len(q) % 2
    turned = list(q)
    for f in range(dims // 2):
        angle = distance * options.base ** (-2 * f / dims)
        a, b = q[2 * f], q[2 * f + 1]
        turned[2 * f] = a * math.cos(angle) - b * math.sin(angle)
        turned[2 * f + 1] = a * math.sin(angle) + b * math.cos(angle)
    return torch.stack(turned) @ k / math.sqrt(len(q))


# Patterns


@dataclass(frozen=True)
class Window:
    """Steps that one head looks back, its own included; the distance of the keys; first tokens that stay visible.

    Attributes:
        edges: the keys of token t in place of these, or None.
        allowed: whether a head of token t may see token s of the window; None for yes.
        node: key and value of one head of a node, from the keys and values of all tokens.
        shift: what is added to the score of the n-th edge.
        label: what is added to the score of a key.
    """

    steps: int
    dilation: int = 1
    sinks: int = 0
    edges: Callable[..., list[Key]] | None = None
    allowed: Callable[[int, int, int], bool] | None = None
    node: Callable[[Reader, str, int, int, list[tuple[Tensor, Tensor]]], tuple[Tensor, Tensor]] | None = None
    shift: Callable[[Reader, Tensor, int], Tensor] | None = None
    label: Callable[[Reader, Tensor, Key], Tensor] | None = None


def everything(reader: Reader, options: Any) -> Window:
    """As far as the memory goes."""
    return Window(reader.config.memory + 1)


def band(reader: Reader, options: Any) -> Window:
    """The newest steps."""
    return Window(options.window)


def dilated(reader: Reader, options: Any) -> Window:
    """Its window counts keys, not steps."""
    return Window((options.window - 1) * options.dilation + 1, options.dilation)


def longformer(reader: Reader, options: Any) -> Window:
    """The newest steps and the first tokens."""
    return Window(options.window, sinks=options.sinks)


def pointer_walk(i: int, neighbors: int) -> list[tuple[int, int]]:
    """Level and number of the nodes that leaf i is connected with, as published (Ye et al. 2019, section 3.1)."""
    pointer, level, over, found = i - 1, 0, False, []
    while True:
        for _ in range(neighbors):
            if pointer >= 0:
                found.append((level - 1, 2 * pointer) if over else (level, pointer))
                over = False
                pointer -= 1
        if pointer < 0:
            return found
        over = pointer % 2 == 0
        pointer //= 2
        level += 1


def bp_edges(reader: Reader, neighbors: int, t: int) -> list[Key]:
    """The token and its spans as far as their first leaves are in the memory, in the order of the walk.

    Spans that are too far away leave no gap: whatever lies behind them is farther still.
    """
    group = reader.config.tokens_per_step
    reach = reader.config.memory * group + t % group
    nodes = pointer_walk(t, neighbors)
    seen = [(level, m) for level, m in nodes if t - m * 2**level <= reach]
    return [("token", t, 0), *((f"node {level}", m, t - ((m + 1) * 2**level - 1)) for level, m in seen)]


def bp_node(reader: Reader, kind: str, m: int, head: int, tokens: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Means over the leaves, by the softmax of a query of the level; a leaf is itself."""
    level = int(kind.split()[1])
    leaves = tokens[m * 2**level : (m + 1) * 2**level]
    if level == 0:
        return leaves[0]
    query = reader["mixing.mixer.chooser.node_query"][level - 1, head]
    weights = softmax([query @ k / math.sqrt(len(k)) for k, _ in leaves])
    k, v = (sum(w * leaf[i] for w, leaf in zip(weights, leaves, strict=True)) for i in (0, 1))
    assert isinstance(k, Tensor) and isinstance(v, Tensor)
    return k, v


def bp_shift(reader: Reader, q: Tensor, n: int) -> Tensor:
    """Shaw et al. 2018, equation 4, with the vector of an edge."""
    return q @ reader["mixing.mixer.chooser.edges"][n] / math.sqrt(len(q))


def bp(reader: Reader, options: Any) -> Window:
    """Leaves and nodes."""
    return Window(
        reader.config.memory + 1,
        edges=functools.partial(bp_edges, neighbors=options.neighbors),
        node=bp_node,
        shift=bp_shift,
    )


# Memories


def windows_of(reader: Reader) -> list[Window]:
    """The window that all heads share, or one per head."""
    selection: Selection = reader.twin("selection")
    if selection.window is not None:
        return [selection.window(reader, reader.options("selection"))]
    choices = reader.config.choices.layer(reader.layer).patterns
    return [reader.find("pattern", choice.name)(reader, choice.options) for choice in choices]


def by_patterns(reader: Reader, head: int, t: int) -> list[Key]:
    """The keys of one head of token t; sinks outside every window count as just outside the longest one."""
    group = reader.config.tokens_per_step
    windows = windows_of(reader)
    own = windows[head] if len(windows) > 1 else windows[0]
    if own.edges is not None:
        return own.edges(reader, t=t)
    edge = max(each.steps for each in windows) * group
    found: list[Key] = []
    for s in range(t + 1):
        near = t // group - s // group < own.steps and (t - s) % own.dilation == 0
        if near and (own.allowed is None or own.allowed(head, t, s)):
            found.append(("token", s, t - s))
        elif s < own.sinks:
            found.append(("token", s, min(t - s, edge)))
    return found


def layer_inputs(reader: Reader, tokens: Rows, prepared: Rows) -> dict[str, Tensor]:
    """What the layer received."""
    return {"hidden": torch.stack(tokens), "sinks": torch.stack(tokens)}


def normal(reader: Reader, name: str, row: Tensor) -> Tensor:
    """A query or a key of one head, with RMS normalization where the score has gains."""
    gain = reader.get(f"mixing.mixer.score.norm.{name}_gain")
    return row if gain is None else row / torch.sqrt((row @ row) / len(row) + 1e-5) * gain


def layer_keys(reader: Reader, tokens: Rows, prepared: Rows) -> dict[str, Tensor]:
    """Keys and values."""
    if reader.get("mixing.mixer.score.norm.key_gain") is not None:
        groups = reader.config.kv_heads or reader.heads
        split = [
            reader.key_value_of(row).split([groups * reader.head_dim, groups * reader.value_dim]) for row in prepared
        ]
        rows = [torch.cat([*(normal(reader, "key", each) for each in k.view(groups, -1)), v]) for k, v in split]
        return {"keys": torch.stack(rows), "sink_keys": torch.stack(rows)}
    mixing: HeadMixing = reader.twin("head_mixing")
    if mixing.row is not None:
        keys = torch.stack([mixing.row(reader, row) for row in prepared])
        return {"keys": keys, "sink_keys": keys}
    shared = reader.twin("selection").meeting is not None  # queries are a part of the keys
    every = slice(None)
    keys = torch.stack([reader.projected_by(every, row) if shared else reader.key_value_of(row) for row in prepared])
    return {"keys": keys, "sink_keys": keys}


def no_slots(reader: Reader, tokens: Rows) -> Rows:
    """Nothing is compressed."""
    return []


@dataclass(frozen=True)
class Memory:
    """Which keys a head of token t sees, what is kept of all tokens, and what some of them are compressed into.

    Attributes:
        query, key: what queries and keys become in the whole layer.
        recall: the output of a head with what its query finds among the keys and values of all tokens so far.
    """

    visible: Callable[[Reader, int, int], list[Key]] = by_patterns
    rows: Callable[[Reader, Rows, Rows], dict[str, Tensor]] = layer_inputs
    slots: Callable[[Reader, Rows], Rows] = no_slots
    query: Callable[[Reader, int, Tensor], Tensor] = lambda reader, head, q: q
    key: Callable[[Reader, Tensor], Tensor] = lambda reader, k: k
    recall: Callable[..., Tensor] = lambda reader, head, q, stored, logits, out: out
    state_of_slots: Callable[[Reader, Rows, int], dict[str, Tensor]] = lambda reader, slots, count: {}
    tokens_of_slot: Callable[[Reader], int] = lambda reader: reader.options("memory_kind").rate


def by_blocks(reader: Reader, head: int, t: int) -> list[Key]:
    """Newest blocks, then the tokens that are in none."""
    options = reader.options("memory_kind")
    rate, count = options.rate, options.slots
    done = max(0, t - reader.config.memory) // rate
    blocks = [("slot", k, t - ((k + 1) * rate - 1)) for k in range(max(0, done - count), done)]
    return blocks + [("token", s, t - s) for s in range(rate * done, t + 1)]


def compressed(reader: Reader, tokens: Rows) -> Rows:
    """One vector per complete block of the episode; no gradient reaches the tokens or the compression."""
    options = reader.options("memory_kind")
    rate, blocks = options.rate, []
    for k in range(len(tokens) // rate):
        rows = torch.stack(tokens[k * rate : (k + 1) * rate]).detach()
        if options.function == "conv":
            into = reader["mixing.memory.encode.weight"].detach(), reader["mixing.memory.encode.bias"].detach()
            blocks.append(into[0] @ rows.flatten() + into[1])
        else:
            blocks.append({"mean": rows.sum(0) / rate, "max": rows.max(0).values}[options.function])
    return blocks


def newest_blocks(reader: Reader, slots: Rows, count: int) -> dict[str, Tensor]:
    """The blocks that the token after ``count`` tokens may see."""
    options = reader.options("memory_kind")
    done = max(0, count - 1 - reader.config.memory) // options.rate
    found = [slots[k] if k >= 0 else torch.zeros(reader.width) for k in range(done - options.slots, done)]
    return {"slots": torch.stack(found)}


# Priors, heads, selections, spans


@dataclass(frozen=True)
class Prior:
    """What is added to a score, and the logits of one query with those of the layer below.

    Attributes:
        shift: by distance.
        at: by query, its place and distance.
        over: by the inputs of all tokens, for a head, the place of a query and the distance.
        kept_over: what a layer keeps of these inputs for later tokens.
        around: the logit of a token, head and key from its own and those of the layer below.
        kept: what a layer keeps of the logits below for later tokens.
        values: a value from its own and that of the same key in the first layer, None there.
        hands_weights: whether the layer above gets the weights of a layer in place of its logits.
        reads: what takes the place of the mixer in layers that take weights from the layer below, or None.
    """

    shift: Callable[[Reader, int, int], Tensor] | None = None
    at: Callable[[Reader, int, Tensor, int, int], Tensor] | None = None
    over: Callable[[Reader, Rows, int, int, int], Tensor] | None = None
    kept_over: Callable[[Reader, Rows], dict[str, Tensor]] = lambda reader, prepared: {}
    values: Callable[[Reader, Tensor, Tensor | None], Tensor] | None = None
    hands_weights: bool = False
    around: Callable[[Reader, Tensor, Logits, int, int, Key], Tensor] | None = None
    kept: Callable[[Reader, Logits, int], dict[str, Tensor]] = lambda reader, below, count: {}
    reads: Callable[[Reader], Callable[[Reader, Rows, Rows, Logits], Mixture] | None] = lambda reader: None
    logits: Callable[[Rows, Rows], Rows] | None = None


def gaussian_shift(reader: Reader, head: int, distance: int) -> Tensor:
    """Guo et al. 2019, equation 5, with softplus for the signs."""
    w, b = (torch.log(1 + torch.exp(reader[f"mixing.mixer.prior.{name}"][head, 0])) for name in ("width", "offset"))
    return -torch.abs(w * distance**2 - b)


def summed_logits(own: Rows, below: Rows) -> Rows:
    """He et al. 2021, equation 4."""
    return [logit + other for logit, other in zip(own, below, strict=True)]


def separate(reader: Reader, rows: list[Any]) -> list[Any]:
    """Heads that know nothing of each other."""
    return rows


def own_queries(reader: Reader, row: Tensor) -> Rows:
    """The query of every head."""
    return list(reader.query_of(row).view(reader.heads, reader.head_dim))


def own_keys(reader: Reader, row: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The key and the value of every head, which heads may share."""
    groups, width = reader.config.kv_heads or reader.heads, reader.head_dim
    both = reader.key_value_of(row)
    k, v = both[: groups * width].view(groups, width), both[groups * width :].view(groups, reader.value_dim)
    own = [head // (reader.heads // groups) for head in range(reader.heads)]
    return [(k[group], v[group]) for group in own]


@dataclass(frozen=True)
class Meeting:
    """How the queries of a token meet keys.

    Attributes:
        queries, keys: of every head, from the input of a token.
        content: the score of a query and a key at a distance besides what the position adds; None for their product.
        settle: what a query becomes before it reads, from the keys in sight and what is added to their scores.
        sees: whether a head of token t sees a key that its pattern allows.
    """

    queries: Callable[[Reader, Tensor], Rows] = own_queries
    keys: Callable[[Reader, Tensor], list[tuple[Tensor, Tensor]]] = own_keys
    content: Callable[[Reader, int, Tensor, Tensor, int], Tensor] | None = None
    settle: Callable[[Reader, int, Tensor, Rows, Rows], Tensor] | None = None
    sees: Callable[[Reader, int, int, Key], bool] = lambda reader, head, t, key: True

    def scores(
        self, reader: Reader, position: tuple[Position, Any], head: int, q: Tensor, keys: list[tuple[Tensor, int]]
    ) -> Rows:
        """Scores of keys with their distances."""
        twin, options = position
        if self.content is None:
            return [twin.score(reader, options, head, q, k, d) for k, d in keys]
        added = [twin.score(reader, options, head, q if len(q) == len(k) else 0 * k, 0 * k, d) for k, d in keys]
        moved = q if self.settle is None else self.settle(reader, head, q, [k for k, _ in keys], added)
        return [self.content(reader, head, moved, k, d) + a for (k, d), a in zip(keys, added, strict=True)]


PRODUCTS = Meeting()


def projected(reader: Reader, outputs: Rows) -> Tensor:
    """Outputs of heads side by side, projected."""
    out, bias = reader["mixing.mixer.output.weight"] @ torch.cat(outputs), reader.get("mixing.mixer.output.bias")
    return out if bias is None else out + bias


@dataclass(frozen=True)
class HeadMixing:
    """What heads [H] of rows of numbers become before and after the softmax; sizes of heads are settings.

    Attributes:
        meeting: how queries meet keys, unless the mixer says it.
        gate: the outputs of the heads of a token with this input, as they are joined.
        join: the output of the layer from those of the heads.
        row: what a memory of keys keeps of a token, where these are not keys and values.
    """

    before: Callable[[Reader, list[Any]], list[Any]] = separate
    after: Callable[[Reader, list[Any]], list[Any]] = separate
    meeting: Meeting = PRODUCTS
    gate: Callable[[Reader, Tensor, Rows], Rows] = lambda reader, row, outputs: outputs
    join: Callable[[Reader, Rows], Tensor] = projected
    row: Callable[[Reader, Tensor], Tensor] | None = None


def talking(name: str) -> Callable[[Reader, list[Any]], list[Any]]:
    """Shazeer et al. 2020, section 4: every head becomes a mixture of all."""

    def mixture(reader: Reader, rows: list[Any]) -> list[Any]:
        matrix = reader[f"mixing.mixer.head_mixing.{name}"]
        return [
            [
                sum((rows[h][i] * matrix[h, k] for h in range(1, len(rows))), rows[0][i] * matrix[0, k])
                for i in range(len(rows[0]))
            ]
            for k in range(len(rows))
        ]

    return mixture


def every_key(reader: Reader, head: int, q: Tensor, keys: Rows, logits: Rows) -> list[int]:
    """Nothing is left out."""
    return list(range(len(logits)))


@dataclass(frozen=True)
class Selection:
    """What queries and keys become before they meet, and which of the visible keys, oldest first, count.

    Attributes:
        shift: what is added to the score at a distance.
        meeting: how the queries of a token meet keys, or None where heads say it.
        window: keys in place of those that patterns allow, or None.
        added: which of the keys count, and what is added to their scores; None where ``chosen`` says it.
    """

    prepare: Callable[[Tensor], Tensor] = lambda row: row
    chosen: Callable[[Reader, int, Tensor, Rows, Rows], list[int]] = every_key
    shift: Callable[[int], float] = lambda distance: 0.0
    meeting: Meeting | None = None
    window: Callable[[Reader, Any], Window] | None = None
    added: Callable[[Reader, int, Tensor, Rows], dict[int, Tensor]] | None = None


def largest_keys(reader: Reader, head: int, q: Tensor, keys: Rows, logits: Rows) -> list[int]:
    """Zhao et al. 2019, section 2."""
    return sorted(range(len(logits)), key=lambda i: -float(logits[i].detach()))[: reader.options("selection").k]


def spherical(row: Tensor) -> Tensor:
    """Layer norm without parameters."""
    return layer_norm(row, torch.ones(()), torch.zeros(()))


def cluster_keys(reader: Reader, head: int, q: Tensor, keys: Rows, logits: Rows) -> list[int]:
    """Roy et al. 2021, section 4.1, with the newest keys of a cluster in place of the nearest."""
    centroids = reader["mixing.mixer.chooser.centroids"][head]

    def cluster(row: Tensor) -> int:
        products = [float(row.detach() @ centroid) for centroid in centroids]
        return products.index(max(products))

    same = [i for i, key in enumerate(keys) if cluster(key) == cluster(q)]
    return same[-reader.options("selection").window :]


def full_span(reader: Reader, head: int, query_row: Tensor, weights: Rows, distances: list[int]) -> Rows:
    """Weights as they are."""
    return weights


def ramp_span(reader: Reader, z: Tensor, weights: Rows, distances: list[int]) -> Rows:
    """Sukhbaatar et al. 2019, equation 3: a soft edge at z tokens, normalized again."""
    ramp = reader.options("span").ramp
    masked = [w * ((ramp + z - d) / ramp).clamp(0, 1) for w, d in zip(weights, distances, strict=True)]
    total = sum(masked, torch.zeros(())) + 1e-8
    return [each / total for each in masked]


def adaptive_span(reader: Reader, head: int, query_row: Tensor, weights: Rows, distances: list[int]) -> Rows:
    """A span per head."""
    longest = reader.config.memory * reader.config.tokens_per_step
    return ramp_span(reader, reader["mixing.mixer.span.fraction"][head] * longest, weights, distances)


def dynamic_span(reader: Reader, head: int, query_row: Tensor, weights: Rows, distances: list[int]) -> Rows:
    """A span per head and token."""
    longest, at = reader.config.memory * reader.config.tokens_per_step, "mixing.mixer.span.predict."
    z = longest * sigmoid(reader[at + "weight"][head] @ query_row + reader[at + "bias"][head])
    return ramp_span(reader, z, weights, distances)


# Mixers: outputs, the state of the layer, logits for the layer above.

Mixture = tuple[Rows, dict[str, Tensor], Logits]


def attention_by(meeting: Meeting) -> Callable[..., Mixture]:
    """Attention whose queries meet keys in another way."""

    def mixture(reader: Reader, tokens: Rows, prepared: Rows, below: Logits) -> Mixture:
        return attention(reader, tokens, prepared, below, meeting)

    return mixture


def attention(reader: Reader, tokens: Rows, prepared: Rows, below: Logits, meeting: Meeting | None = None) -> Mixture:
    """Every token collects its keys one by one."""
    heads, value_width = reader.heads, reader.value_dim
    memory: Memory = reader.twin("memory_kind")
    prior: Prior = reader.twin("prior")
    mixing: HeadMixing = reader.twin("head_mixing")
    selection: Selection = reader.twin("selection")
    meeting = meeting or selection.meeting or mixing.meeting
    span = reader.twin("span")
    cap, sink = getattr(reader.options("mixer"), "softcap", None), reader.get("mixing.mixer.score.sink")
    inside = (content, unchanged, None)
    at_score = [each for each in reader.positions() if (each[0].score, each[0].source, each[0].beside) != inside]
    position, options = at_score[0] if at_score else (Position(), None)
    slots = memory.slots(reader, tokens)
    mixed: Rows = []
    logits: Logits = {}

    def with_channels(row: Tensor, which: str, index: int, p: int) -> Tensor:
        return row if position.beside is None else torch.cat([row, position.beside(reader, options, which, index, p)])

    def key_of(row: Tensor, p: int) -> list[tuple[Tensor, Tensor]]:
        groups = reader.config.kv_heads or heads
        both = zip(
            meeting.keys(reader, position.source(reader, options, row, p)), meeting.keys(reader, row), strict=True
        )
        return [
            (memory.key(reader, with_channels(normal(reader, "key", k), "key", head * groups // heads, p)), v)
            for head, ((k, _), (_, v)) in enumerate(both)
        ]

    def compared(pairs: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
        return [(selection.prepare(k), v) for k, v in pairs]

    stored = [key_of(row, s) for s, row in enumerate(prepared)]
    sources = {("token", s): compared(pairs) for s, pairs in enumerate(stored)}
    for number, slot in enumerate(slots):
        last = (number + 1) * memory.tokens_of_slot(reader) - 1
        sources["slot", number] = compared(key_of(reader.prepare("join_mixing", slot), last))
    if prior.values is not None:
        firsts = below or {(0, head, (*at, 0)): v for at, pairs in sources.items() for head, (_, v) in enumerate(pairs)}
        logits |= firsts
        sources = {
            at: [
                (k, prior.values(reader, v, firsts[0, head, (*at, 0)] if below else None))
                for head, (k, v) in enumerate(pairs)
            ]
            for at, pairs in sources.items()
        }
    pattern = windows_of(reader)[0]
    for t, query_row in enumerate(prepared):
        made = meeting.queries(reader, position.source(reader, options, query_row, t))
        wide = [with_channels(normal(reader, "query", row), "query", head, t) for head, row in enumerate(made)]
        asked = [memory.query(reader, head, row) for head, row in enumerate(wide)]
        q = [selection.prepare(row) for row in asked]
        seen = [
            [key for key in memory.visible(reader, head, t) if meeting.sees(reader, head, t, key)]
            for head in range(heads)
        ]
        for kind, s, _ in seen[0]:
            if pattern.node is not None and (kind, s) not in sources:
                of_heads = [[sources["token", each][head] for each in range(len(prepared))] for head in range(heads)]
                sources[kind, s] = [pattern.node(reader, kind, s, head, of_heads[head]) for head in range(heads)]
        own: list[Any] = []
        for head in range(heads):
            keys = [(sources[kind, s][head][0], d) for kind, s, d in seen[head]]
            scores = meeting.scores(reader, (position, options), head, q[head], keys)
            own.append([score + selection.shift(d) for score, (_, d) in zip(scores, keys, strict=True)])
            if pattern.shift is not None:
                own[head] = [logit + pattern.shift(reader, q[head], n) for n, logit in enumerate(own[head])]
            if position.label is not None:
                labels = [position.label(reader, q[head], key) for key in seen[head]]
                own[head] = [logit + label for logit, label in zip(own[head], labels, strict=True)]
            if pattern.label is not None:
                labels = [pattern.label(reader, q[head], key) for key in seen[head]]
                own[head] = [logit + label for logit, label in zip(own[head], labels, strict=True)]
            if prior.shift is not None:
                own[head] = [
                    logit + prior.shift(reader, head, d) for logit, (_, d) in zip(own[head], keys, strict=True)
                ]
            if prior.at is not None:
                own[head] = [
                    logit + prior.at(reader, head, q[head], t, d) for logit, (_, d) in zip(own[head], keys, strict=True)
                ]
            if prior.over is not None:
                losses = [prior.over(reader, prepared, head, t, d) for _, d in keys]
                own[head] = [logit + loss for logit, loss in zip(own[head], losses, strict=True)]
            if cap is not None:
                own[head] = [cap * torch.tanh(logit / cap) for logit in own[head]]
        weights: list[Any] = []
        counted: list[Rows] = []
        for head, row in enumerate(mixing.before(reader, own)):
            if prior.logits is not None:
                row = prior.logits(row, [below[t, head, key] for key in seen[head]]) if below else row
                logits |= {(t, head, key): logit for logit, key in zip(row, seen[head], strict=True)}
            if prior.around is not None:
                row = [
                    prior.around(reader, logit, below, t, head, key) for logit, key in zip(row, seen[head], strict=True)
                ]
                logits |= {(t, head, key): logit for logit, key in zip(row, seen[head], strict=True)}
            own_keys = [sources[kind, s][head][0] for kind, s, _ in seen[head]]
            if selection.added is None:
                found = selection.chosen(reader, head, q[head], own_keys, row)
            else:
                added = selection.added(reader, head, q[head], own_keys)
                row, found = [x + added.get(i, 0.0) for i, x in enumerate(row)], sorted(added)
            counted.append([row[i] for i in found])
            shares = [x if i in found else x.detach() * 0 - math.inf for i, x in enumerate(row)]
            shares = softmax(shares) if sink is None else softmax([*shares, sink[head]])[:-1]
            weights.append(span(reader, head, query_row, shares, [d for _, _, d in seen[head]]))
        outputs = []
        for head, row in enumerate(mixing.after(reader, weights)):
            total = torch.zeros(value_width)
            for weight, (kind, s, d) in zip(row, seen[head], strict=True):
                total = total + weight * position.value(reader, options, sources[kind, s][head][1], d)
            if prior.hands_weights:
                logits |= {(t, head, key): weight for weight, key in zip(row, seen[head], strict=True)}
            past = [pairs[head] for pairs in stored[: t + 1]]
            outputs.append(memory.recall(reader, head, asked[head], past, counted[head], total))
        mixed.append(mixing.join(reader, mixing.gate(reader, query_row, outputs)))
    state = memory.rows(reader, tokens, prepared) | memory.state_of_slots(reader, slots, len(tokens))
    return mixed, state | prior.kept(reader, below, len(tokens)) | prior.kept_over(reader, prepared), logits


def softmax(logits: Rows) -> Rows:
    """Shares of the exponentials; nothing where all logits are minus infinity."""
    largest = max(float(logit.detach()) for logit in logits)
    powers = [torch.exp(logit - largest) if logit > -math.inf else torch.zeros(()) for logit in logits]
    total = sum(powers[1:], powers[0])
    return [power / total for power in powers] if largest > -math.inf else powers


def other_mixer(twin: Callable[[Any, Tensor], tuple[Tensor, dict[str, Tensor] | None]]) -> Callable[..., Mixture]:
    """A twin of ``tests/mixers``, which gives no state where the rows of a memory are all of it."""

    def mixture(reader: Reader, tokens: Rows, prepared: Rows, below: Logits) -> Mixture:
        module = reader.backbone.get_submodule(f"{reader.at}mixing.mixer")
        out, state = twin(module, torch.stack(prepared))
        return list(out), {"hidden": torch.stack(tokens)} if state is None else state, {}

    return mixture


# Residual schemes


def layer_norm(row: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Ba et al. 2016."""
    mean = row.sum() / len(row)
    variance = (row - mean).square().sum() / len(row)
    return (row - mean) / torch.sqrt(variance + 1e-5) * weight + bias


def rms_norm(row: Tensor, weight: Tensor) -> Tensor:
    """Zhang & Sennrich 2019, equation 4."""
    return row / torch.sqrt(row.square().sum() / len(row) + 1e-5) * weight


def norm(reader: Reader, join: str, row: Tensor) -> Tensor:
    """The norm of one join."""
    if reader.config.norm == "rms":
        return rms_norm(row, reader[f"{join}.norm.weight"])
    return layer_norm(row, reader[f"{join}.norm.weight"], reader[f"{join}.norm.bias"])


def positive(row: Tensor) -> Tensor:
    """max(x, 0)."""
    return row * (row > 0)


@dataclass(frozen=True)
class Residual:
    """The input of a submodule, the stream after it, and the way through the layers where it is another one."""

    prepare: Callable[[Reader, str, Tensor], Tensor]
    combine: Callable[[Reader, str, Tensor, Tensor], Tensor]
    way: Callable[[Walk, Rows], Rows] | None = None


POST_NORM = Residual(lambda reader, join, row: row, lambda reader, join, x, y: norm(reader, join, x + y))
PRE_NORM = Residual(norm, lambda reader, join, x, y: x + y)
PRE_NORM_RELU = Residual(norm, lambda reader, join, x, y: x + positive(y))


def gate_part(reader: Reader, join: str, matrix: str, index: int, row: Tensor) -> Tensor:
    """One of the matrices that lie under each other, times a row."""
    width = len(row)
    return reader[f"{join}.gate.{matrix}.weight"][index * width : (index + 1) * width] @ row


def gru(reader: Reader, join: str, x: Tensor, y: Tensor) -> Tensor:
    """Parisotto et al. 2019, section 3.2, as the other gates."""
    r = sigmoid(gate_part(reader, join, "from_y", 0, y) + gate_part(reader, join, "from_x", 0, x))
    z = gate_part(reader, join, "from_y", 1, y) + gate_part(reader, join, "from_x", 1, x)
    z = sigmoid(z - reader[f"{join}.gate.bias"])
    new = torch.tanh(gate_part(reader, join, "from_y", 2, y) + gate_part(reader, join, "candidate", 0, r * x))
    return (1 - z) * x + z * new


def input_gate(reader: Reader, join: str, x: Tensor, y: Tensor) -> Tensor:
    """sigmoid(W x) x + y."""
    return sigmoid(gate_part(reader, join, "linear", 0, x)) * x + y


def output_gate(reader: Reader, join: str, x: Tensor, y: Tensor) -> Tensor:
    """x + sigmoid(W x - b) y."""
    return x + sigmoid(gate_part(reader, join, "linear", 0, x) - reader[f"{join}.gate.bias"]) * y


def highway(reader: Reader, join: str, x: Tensor, y: Tensor) -> Tensor:
    """sigmoid(W x + b) x + (1 - sigmoid(W x + b)) y."""
    carry = sigmoid(gate_part(reader, join, "linear", 0, x) + reader[f"{join}.gate.bias"])
    return carry * x + (1 - carry) * y


def sigtanh(reader: Reader, join: str, x: Tensor, y: Tensor) -> Tensor:
    """x + sigmoid(W y - b) tanh(U y)."""
    openness = sigmoid(gate_part(reader, join, "from_y", 0, y) - reader[f"{join}.gate.bias"])
    return x + openness * torch.tanh(gate_part(reader, join, "from_y", 1, y))


def gated(gate: Callable[[Reader, str, Tensor, Tensor], Tensor]) -> Residual:
    """A gate behind a ReLU, with the norm in front of the submodule or at the end."""

    def prepare(reader: Reader, join: str, row: Tensor) -> Tensor:
        return norm(reader, join, row) if reader.options("residual").reordered else row

    def combine(reader: Reader, join: str, x: Tensor, y: Tensor) -> Tensor:
        if reader.options("residual").reordered:
            return gate(reader, join, x, positive(y))
        return norm(reader, join, gate(reader, join, x, y))

    return Residual(prepare, combine)


def two_streams(walk: Walk, tokens: Rows) -> Rows:
    """Gomez et al. 2017, equation 1; the mean of the streams."""
    first, second = tokens, tokens
    for layer in range(walk.layers):
        mixed, _ = walk.mix(layer, second, {})
        first = [a + b for a, b in zip(first, mixed, strict=True)]
        second = [a + b for a, b in zip(second, walk.transform(layer, first), strict=True)]
    return [(a + b) / 2 for a, b in zip(first, second, strict=True)]


# Depths


@dataclass(frozen=True)
class Depth:
    """The way through the layers, and whether the encodings of the input are added once, in front of them."""

    way: Callable[[Walk, Rows], Rows]
    embeds_once: bool = False


def in_turn(walk: Walk, tokens: Rows) -> Rows:
    """Every layer once."""
    logits: Logits = {}
    for layer in range(walk.layers):
        tokens, logits = walk.layer(layer, tokens, logits)
    return tokens


def with_step(rows: Rows, layer: int) -> Rows:
    """Rows that know which application of a layer they meet."""
    return [row + sinusoid_at(layer + 1, len(row)) for row in rows]


def again(walk: Walk, tokens: Rows) -> Rows:
    """Dehghani et al. 2019, equations 4 to 6."""
    logits: Logits = {}
    for layer in range(walk.layers):
        tokens, logits = walk.layer(layer, with_step(walk.embedded(tokens), layer), logits)
    return tokens


def halting(walk: Walk, tokens: Rows) -> Rows:
    """Dehghani et al. 2019, appendix A.8, one token at a time inside every step."""
    options = walk.reader(0).options("depth")
    weight, bias = (walk.reader(0).tensors[f"halt.{name}"][0] for name in ("weight", "bias"))
    total: Rows = [torch.zeros_like(row) for row in tokens]
    cumulated: list[Any] = [0.0] * len(tokens)
    halted = [False] * len(tokens)
    for layer in range(walk.layers):
        outputs, _ = walk.layer(layer, with_step(walk.embedded(tokens), layer), {})
        for t, new in enumerate(outputs):
            if halted[t]:
                continue
            p = sigmoid(new @ weight + bias)
            halted[t] = bool(cumulated[t] + p >= 1 - options.epsilon) or layer == walk.layers - 1
            total[t] = total[t] + (1 - cumulated[t] if halted[t] else p) * new
            tokens = [*tokens[:t], new, *tokens[t + 1 :]]
            cumulated[t] = cumulated[t] + p
    return total


# Transforms behind the mixer: of all tokens, and what is kept of them.


def by_token(twin: Callable[[Reader, Tensor], Tensor]) -> Callable[[Reader, Rows], tuple[Rows, dict[str, Tensor]]]:
    """A transform of one token."""
    return lambda reader, rows: ([twin(reader, row) for row in rows], {})


Elements = list[tuple[Tensor, bool]]
"""The elements of one token, and whether they exist."""


def elements_by_token(x: Tensor) -> list[Elements]:
    """What the backbone of the tests lets its tokens look at."""
    found = elements_of(x[None])
    return [
        list(zip(rows, flags.tolist(), strict=True)) for rows, flags in zip(found.rows[0], found.exists[0], strict=True)
    ]


def alone(reader: Reader, rows: Rows, elements: list[Elements]) -> Rows:
    """A decoder reads nothing else."""
    return rows


def looking(reader: Reader, rows: Rows, elements: list[Elements]) -> Rows:
    """Vaswani et al. 2017, section 3.2.3, for the elements of each token."""
    found = []
    for row, own in zip(rows, elements, strict=True):
        there = [element for element, exists in own if exists]
        if not there:
            found.append(row)
            continue
        query, heads = reader["cross.query.weight"] @ reader.prepare("join_cross", row), []
        groups = reader.config.kv_heads or reader.heads
        read = [(reader["cross.keys.weight"] @ each).view(groups, -1) for each in there]
        for head in range(reader.heads):
            group = head * groups // reader.heads
            q = query[head * reader.head_dim : (head + 1) * reader.head_dim]
            weights = softmax([q @ each[group, : reader.head_dim] / math.sqrt(reader.head_dim) for each in read])
            values = [each[group, reader.head_dim :] for each in read]
            heads.append(torch.stack([weight * value for weight, value in zip(weights, values, strict=True)]).sum(0))
        found.append(reader.combine("join_cross", row, reader["cross.output.weight"] @ torch.cat(heads)))
    return found


def nothing(reader: Reader, rows: Rows) -> tuple[Rows, dict[str, Tensor]]:
    """There is none."""
    raise AssertionError("a layer that ends behind its mixer has no transform")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": positive,
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))),
    "silu": lambda x: x * sigmoid(x),
    "sigmoid": sigmoid,
    "identity": lambda x: x,
}


def two_products(reader: Reader, row: Tensor, between: Callable[[Tensor], Tensor]) -> Tensor:
    """W2 f(W1 x + b1) + b2."""
    hidden = between(reader["ff.into.weight"] @ row + reader["ff.into.bias"])
    return reader["ff.out.weight"] @ hidden + reader["ff.out.bias"]


def feed_forward(reader: Reader, row: Tensor) -> Tensor:
    """Vaswani et al. 2017, equation 2."""
    return two_products(reader, row, ACTIVATIONS[reader.options("ff").activation])


def glu(reader: Reader, row: Tensor) -> Tensor:
    """Shazeer 2020, equation 5: the first half of the hidden units gates the second one."""
    activation = ACTIVATIONS[reader.options("ff").activation]
    return two_products(reader, row, lambda hidden: activation(hidden[: len(hidden) // 2]) * hidden[len(hidden) // 2 :])
