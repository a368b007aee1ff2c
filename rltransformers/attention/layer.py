"""Attention over groups of key rows: project, split into heads, let an engine compute, join the heads.

Axes: B batch, H heads, G key-value heads, T tokens, N key rows of a group, L distances, K head width, V value width,
E = G (K + V). Long calls are cut into blocks, each with its own memory rows, so work grows linearly with T.
"""

import functools
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.attention.columns import Columns, allowed_at, beside, by_distance, columns_of
from rltransformers.attention.engines.dense import dense
from rltransformers.attention.engines.fused import banded, fused
from rltransformers.attention.engines.gathered import gathered
from rltransformers.attention.plan import TABLES, Plan, kernel_of_torch
from rltransformers.attention.roles import Heads, Judged, Objective, View
from rltransformers.core.spec import Feature, NoOptions, Spec, Traits
from rltransformers.functional import windows
from rltransformers.functional.call import NOBODY, Call, chosen
from rltransformers.functional.context import EVERY
from rltransformers.functional.keys import At, Group, Past, Place, Ring, Rows
from rltransformers.functional.modules import linear
from rltransformers.mixers.interface import Dims, Mixed, RowMixer
from rltransformers.positions.interface import BY_PLACE, Acts

SMALLEST_BLOCK = 32  # tokens; smaller blocks cost more in small products than they save in keys outside the window


class Attention(RowMixer):
    """Scaled dot products, normalised by a softmax over all keys in view, with the parts of a plan plugged in."""

    def __init__(self, dims: Dims, plan: Plan) -> None:
        super().__init__()
        self.dims, self.plan = dims, plan
        self.position, self.prior, self.selection = plan.position, plan.prior, plan.selection
        self.head_mixing, self.span, self.chooser = plan.head_mixing, plan.span, plan.chooser
        self.retriever = plan.retriever
        self.horizon, self.sinks = plan.pattern.horizon, plan.pattern.sinks
        self.stored = 0 if plan.retriever is None else plan.retriever.farthest - self.horizon
        self.score = plan.score
        self.query_width, self.key_width = self.score.query_width, self.score.key_width
        self.key_width += dims.kv_heads * plan.position.channels
        self.constants = nn.ModuleList(plan.pattern.constants())
        self.placed = bool(plan.position.acts & BY_PLACE)
        # rows of the weight: queries, keys, values
        self.project = dims.projection(dims.width, self.score.projected)
        self.output = plan.combine or dims.projection(dims.heads * dims.value_dim, dims.width)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Those of the chooser and of the prior."""
        chooser = {} if self.chooser is None else self.chooser.state_shapes()
        return chooser | self.plan.prior.state_shapes(self.horizon + 1)

    def queries_and_keys(self, h: Float[Tensor, "B T D"]) -> tuple[Float[Tensor, "B T Q"], Float[Tensor, "B T E"]]:
        """Queries, and keys and values side by side, not turned."""
        query, keys = self.plan.score.rows(linear(self.project, h), h)
        if self.retriever is not None:
            query, keys = self.retriever.queries(query), self.retriever.keys(keys)
        return query, keys

    def keys(self, h: Float[Tensor, "B S D"]) -> Float[Tensor, "B S E"]:
        """Keys and values side by side, not turned."""
        bias, own = self.project.bias, self.score.own
        keys = self.score.key_rows(F.linear(h, self.project.weight[own:], None if bias is None else bias[own:]))
        return keys if self.retriever is None else self.retriever.keys(keys)

    def placed_queries(self, query: Float[Tensor, "B T Q"], p: Int[Tensor, "B T"]) -> Float[Tensor, "B T R"]:
        """Queries with the projected code, or the channels, of their positions."""
        position, weight = self.position, self.project.weight
        if Acts.CODE in position.acts:
            return query + F.linear(position.code(p, query), weight[: self.query_width])
        return heads_beside(query, position.query_channels(p, query), self.dims.heads)

    def placed_keys(self, keys: Float[Tensor, "B S F"], p: Int[Tensor, "*b S"]) -> Float[Tensor, "B S E"]:
        """The same of keys; values stay as they are."""
        position, weight = self.position, self.project.weight
        own, width = self.score.own, keys.shape[-1] - self.dims.kv_heads * self.dims.value_dim
        k, v = keys.split_with_sizes([width, keys.shape[-1] - width], -1)
        if Acts.CODE in position.acts:
            k = k + F.linear(position.code(p, keys), weight[own : own + width])
        else:
            k = heads_beside(k, position.key_channels(p, keys), self.dims.kv_heads)
        return torch.cat([k, v], -1)

    def tables(self, reach: int) -> dict[str, Tensor]:
        """Scores by distance, and the turns of rows by how far they lie back."""
        weight = self.project.weight
        distance = torch.arange(reach, device=weight.device)
        found = self.plan.of_distances(distance, weight)
        return found | ({"circle": self.position.circle(distance, weight)} if self.plan.turns else {})

    def table_sources(self) -> list[nn.Module]:
        """The position, and the parts that score distances."""
        parts: list[nn.Module] = [part for part in self.plan.parts if part.scores_distances]
        return [self.position, *parts] if self.plan.turns or self.plan.position_knows_distances else parts

    def forward(
        self,
        h: Float[Tensor, "B T D"],
        query: Float[Tensor, "B T Q"],
        past: Past,
        state: dict[str, Tensor],
        call: Call,
        below: Tensor | None,
    ) -> Mixed:
        """The wanted tokens, and the unmasked logits when a part of the next layer builds on them.

        Of tokens that are not wanted only the keys count; where nothing depends on the order of queries, theirs are not
        even compared.
        """
        batch, time = query.shape[:2]
        if call.probe.listens:
            self.tell(h, call)
        elif call.wanted == NOBODY and self.chooser is None and not self.plan.hands_on:
            return Mixed(h[:, :0], state)
        block, window = block_of(self.horizon), past[-1]
        if self.plan.objectives and call.probe.listens and isinstance(window.place, Rows):
            values = self.split(window.rows[:, -time:], shares=True)[1]
            for objective in self.plan.objectives:
                judge(objective, objective.of_values(values), call)
        if self.retriever is not None:
            store, window = window, newest(window, self.horizon, self.dims.tokens_per_step, call)
            past = (*past[:-1], window)
        cut = isinstance(window.place, Rows) and self.horizon + block < window.rows.shape[1]
        if self.plan.prior.hands_rows:
            below, state = self.plan.prior.carry(below, state, call)
            if cut and below is not None:
                below = windows.fold(below, block)
        if cut and self.chooser is None and foldable(past):
            mixed, logits = self.attend(*self.cut(h, query, past, call, block), below, EVERY)
            mixed = windows.unfold_tokens(joined_heads(mixed), time, batch)
            if logits is not None and self.plan.prior.hands_rows:
                logits = windows.unfold_tokens(logits, time, batch)
            if self.retriever is not None:
                mixed = self.recall(mixed, query, store, call)
            self.judge_outputs(mixed, call)
            return Mixed(self.combined(chosen(mixed, call.wanted)), state, logits)
        early = EVERY if call.probe.listens or self.plan.ordered else call.wanted
        if self.chooser is None:
            mixed, logits = self.attend(h, chosen(query, early), past, call, below, early)
        else:
            mixed, logits, state = self.choose(h, query, past, state, call, below)
        mixed = joined_heads(mixed)
        if self.retriever is not None:
            mixed = self.recall(mixed, query, store, call)
        self.judge_outputs(mixed, call)
        return Mixed(self.combined(mixed if early is call.wanted else chosen(mixed, call.wanted)), state, logits)

    def combined(self, heads: Float[Tensor, "B T HV"]) -> Float[Tensor, "B T D"]:
        """The outputs of the heads as the output of the layer."""
        output: nn.Module = self.output
        if isinstance(output, nn.Linear):
            return linear(output, heads)
        joined: Tensor = output(heads)
        return joined

    def recall(
        self, mixed: Float[Tensor, "B T HV"], query: Float[Tensor, "B T Q"], store: Group, call: Call
    ) -> Float[Tensor, "B T HO"]:
        """Outputs of the window joined with what queries retrieve from behind it."""
        assert self.retriever is not None
        batch, time = query.shape[:2]
        horizon = self.horizon + self.stored
        block = block_of(horizon)
        if isinstance(store.place, Rows) and horizon + block < store.rows.shape[1]:
            (part,), folded = cut((store,), call, block, horizon, time)
            found = self.retriever.retrieve(windows.fold(query, block), part, folded)
            return self.retriever.join(mixed, windows.unfold_tokens(found, time, batch))
        return self.retriever.join(mixed, self.retriever.retrieve(query, store, call))

    def tell(self, h: Float[Tensor, "B T D"], call: Call) -> None:
        """Auxiliary losses of the parts."""
        for part in self.plan.parts:
            part.tell(h, call)

    def judge_outputs(self, mixed: Float[Tensor, "B T HV"], call: Call) -> None:
        """Auxiliary losses of what the heads read."""
        if self.plan.objectives and call.probe.listens:
            outputs = mixed.unflatten(-1, (self.dims.heads, -1)).transpose(1, 2)
            for objective in self.plan.objectives:
                judge(objective, objective.of_outputs(outputs), call)

    def cut(self, h: Tensor, query: Tensor, past: Past, call: Call, block: int) -> tuple[Tensor, Tensor, Past, Call]:
        """Blocks of ``block`` tokens as further batch rows, each with ``horizon`` rows of its own past in front."""
        groups, folded = cut(past, call, block, self.horizon, query.shape[1])
        return windows.fold(h, block), windows.fold(query, block), groups, folded

    def attend(
        self, h: Tensor, query: Tensor, past: Past, call: Call, below: Tensor | None, early: slice
    ) -> tuple[Float[Tensor, "B H T V"], Tensor | None]:
        """One block: the queries of the tokens ``early`` against all keys at once."""
        plan, q = self.plan, self.plan.score.split_queries(query)
        fuses = plan.fuses(past, call.probe.reads_weights or (call.probe.listens and plan.judges_weights))
        shares = fuses and q.shape[2] == 1  # the kernel takes one token's query heads in groups that share their keys
        groups = [Heads(*self.split(group.rows, shares), group.place) for group in past]
        counts = tuple(group.k.shape[-2] for group in groups)
        columns = columns_of(plan.pattern, tuple(group.place for group in groups), counts, call)
        turned, groups = self.turned(self.content_query(q), groups, call)
        listed = self.listed(q, columns, call)
        scores = self.scores(q, listed, columns, call)
        if fuses:
            rate = plan.dropout if self.training else 0.0
            learns = torch.is_grad_enabled() and q.requires_grad
            if early != EVERY:
                columns = replace(columns, mask=columns.mask[:, :, early])
            k, v = side_by_side([group.k for group in groups]), side_by_side([group.v for group in groups])
            time = q.shape[2]
            if kernel_of_torch(scores is not None, learns, time, rate if q.device.type == "cpu" else 0.0):
                return fused(turned, k, v, scores, columns, rate), None
            if scores is None or (columns.contiguous and columns.length <= k.shape[2] - time + 1):
                return banded(turned, self.all_heads(k), self.all_heads(v), scores, columns, rate), None
        groups = [replace(group, k=self.all_heads(group.k), v=self.all_heads(group.v)) for group in groups]
        return self.finish(turned, groups, scores, listed, View(h, columns, below), call)

    def choose(
        self, h: Tensor, query: Tensor, past: Past, state: dict[str, Tensor], call: Call, below: Tensor | None
    ) -> tuple[Float[Tensor, "B H T V"], Tensor | None, dict[str, Tensor]]:
        """The keys that the chooser picks from the window for every query, as far as the pattern allows; all others."""
        plan, chooser = self.plan, self.chooser
        assert chooser is not None
        q = chooser.prepare(self.plan.score.split_queries(query))
        split = [(self.split(group.rows), group.place) for group in past]
        groups = [Heads(chooser.prepare(k), v, place) for (k, v), place in split]
        selected, state = chooser.choose(q, groups[-1], state, call)
        selected = replace(selected, at=allowed_at(plan.pattern, selected.at, call.tokens.p))
        turned, groups = self.turned(self.content_query(q), [*groups, *selected.others], call)
        others, window, made = groups[: len(past) - 1], groups[len(past) - 1], groups[len(past) :]
        groups = [*others, *gathered(window, replace(selected, others=tuple(made)))]
        counts = tuple(group.k.shape[-2] for group in groups)
        columns = columns_of(plan.pattern, tuple(group.place for group in groups), counts, call)
        view, listed = View(h, columns, below), self.listed(q, columns, call)
        return *self.finish(turned, groups, self.scores(q, listed, columns, call), listed, view, call), state

    def finish(
        self,
        turned: Tensor,
        groups: list[Heads],
        scores: Tensor | None,
        listed: dict[str, Tensor],
        view: View,
        call: Call,
    ) -> tuple[Float[Tensor, "B H T V"], Tensor | None]:
        """By explicit logits, watched where somebody asks."""
        out, logits, weights = dense(self.plan, turned, groups, scores, listed, view, self.training)
        if call.probe.reads_weights:
            self.watch(weights, view.columns, call)
        if call.probe.listens:
            for objective in self.plan.objectives:
                judge(objective, objective.of_weights(weights, view.columns, call.tokens), call)
        if self.plan.prior.hands_rows:
            window, columns = groups[-1].place, view.columns
            assert not isinstance(window, At)
            own = slice(-groups[-1].k.shape[-2], None)
            return out, by_distance(logits[..., own], columns.visible[..., own], window, self.horizon + 1)
        return out, logits if self.plan.hands_on else None

    def content_query(self, q: Float[Tensor, "B H T K"]) -> Float[Tensor, "B H T K"]:
        """Queries as they meet key contents."""
        return self.position.content_query(q) if Acts.QUERY in self.position.acts else q

    def listed(self, q: Float[Tensor, "B H T K"], columns: Columns, call: Call) -> dict[str, Tensor]:
        """``TABLES`` of the listed distances."""
        if not self.plan.scores_distances:
            return {}
        tables = {name: call.tables[f"{call.place}.{name}"] for name in TABLES
                  if f"{call.place}.{name}" in call.tables}  # fmt: skip
        if tables:
            return {name: table.index_select(0, columns.listed) for name, table in tables.items()}
        return self.plan.of_distances(columns.listed, q)

    def scores(
        self, q: Float[Tensor, "B H T K"], listed: dict[str, Tensor], columns: Columns, call: Call
    ) -> Tensor | None:
        """Scores by listed distance, or None when there are none."""
        found = self.plan.scores(q, listed)
        own = [part.of_queries(q, columns.listed, call.tokens) for part in self.plan.on_queries]
        if not self.plan.score.plain and (score := self.plan.score.by_distance(q, columns.listed)) is not None:
            own.append(score)
        if not own:
            return found
        return functools.reduce(
            Tensor.add, own if found is None else [*own, found[:, None] if found.dim() == 2 else found]
        )

    def turned(
        self, query: Float[Tensor, "B H T K"], groups: list[Heads], call: Call
    ) -> tuple[Float[Tensor, "B H T K"], list[Heads]]:
        """Queries and keys turned by their places, where the position does so."""
        if not self.plan.turns:
            return query, groups
        position, behind = self.position, windows.descending(query.shape[2], query.device)
        turned = [
            replace(group, k=position.turn(group.k, self.circle(back(group, behind, self.horizon + 1), query, call)))
            for group in groups
        ]
        return position.turn(query, self.circle(behind, query, call)), turned

    def circle(self, behind: Int[Tensor, "*n"], like: Tensor, call: Call) -> Float[Tensor, "*n 2 f"]:
        """How rows that lie ``behind`` the last token are turned."""
        table = call.tables.get(f"{call.place}.circle")
        return self.plan.position.circle(behind, like) if table is None else table[behind.clamp(0, len(table) - 1)]

    def split(self, rows: Float[Tensor, "B *T N E"], shares: bool = False) -> tuple[Tensor, Tensor]:
        """Keys [B, H, *T, N, K] and values [B, H, *T, N, V]; [B, G, ...] where heads of queries share them."""
        k, v = self.plan.score.split(rows)
        return (k, v) if shares else (self.all_heads(k), self.all_heads(v))

    def all_heads(self, heads: Float[Tensor, "B G *n"]) -> Float[Tensor, "B H *n"]:
        """Every query head next to its key-value head."""
        repeats = self.dims.heads // heads.shape[1]
        return heads if repeats == 1 else heads.repeat_interleave(repeats, 1)

    def content(self, h: Float[Tensor, "B T D"], rows: Float[Tensor, "B S D"], seen: Tensor) -> Float[Tensor, "B T O"]:
        """Values that queries ``h`` read from ``rows`` where ``seen`` [B, S], by content alone, with frozen weights."""
        weight, given, score = self.project.weight.detach(), self.project.bias, self.score
        bias = weight.new_zeros(len(weight)) if given is None else given.detach()
        frozen = {name: value.detach() for name, value in score.named_parameters()}
        prepare = (lambda heads: heads) if self.chooser is None else self.chooser.prepare
        found: Tensor = torch.func.functional_call(score, frozen, (weight, bias, h, rows, seen, prepare))
        return found

    def watch(self, weights: Float[Tensor, "B H T S"], columns: Columns, call: Call) -> None:
        """Tell look-back distance in tokens, entropy in nats, and the share of the window that no token fills yet."""
        tokens, probe = call.tokens, call.probe
        with torch.no_grad():
            valid = tokens.valid().to(weights.dtype)[:, None]
            count = valid.sum().clamp(min=1) * self.dims.heads
            distance = beside(columns.distances()).expand_as(weights)
            far = (weights * distance).sum(-1)
            entropy = -(weights * weights.clamp(min=1e-12).log()).sum(-1)
            probe.metric("lookback", (far * valid).sum() / count)
            probe.metric("entropy", (entropy * valid).sum() / count)
            empty = (1 - self.filled(tokens.p) / (self.horizon + 1)).to(valid.dtype)
            probe.metric("empty_slots", (empty * valid[:, 0]).sum() / valid.sum().clamp(min=1))
            mass = weights.new_zeros(self.dims.heads, columns.length)
            index = distance.transpose(0, 1).flatten(1)
            mass = mass.scatter_add_(1, index, (weights * valid[..., None]).transpose(0, 1).flatten(1))
            probe.lookback(mass / valid.sum().clamp(min=1))

    def filled(self, p: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
        """Tokens of the window that exist."""
        return torch.minimum(p, self.plan.pattern.limits(p).amax(1)) + 1

    def constrain_(self) -> None:
        """Bring parameters back into their range after an optimiser step."""
        for part in self.plan.parts:
            part.constrain_()

    def maintain(self) -> None:
        """Let the chooser learn between collecting and learning."""
        if self.chooser is not None:
            self.chooser.maintain()


def block_of(horizon: int) -> int:
    """Tokens of a block: a quarter of the window, so that few keys stand outside it."""
    return max(-(-horizon // 4), SMALLEST_BLOCK)


def newest(store: Group, horizon: int, tokens_per_step: int, call: Call) -> Group:
    """The window at the end of a store, as a memory that keeps ``horizon`` rows has it."""
    rows, place, time = store.rows, store.place, call.tokens.p.shape[1]
    if isinstance(place, Rows):
        return Group(rows[:, max(0, rows.shape[1] - horizon - time) :], place)
    assert isinstance(place, Ring) and call.clock is not None
    size = horizon + tokens_per_step
    last = (call.clock + (time - 1)) % size
    back = last - torch.arange(size, device=rows.device)
    age = torch.where(back < 0, back + size, back)
    return Group(rows.index_select(1, (place.newest - age) % rows.shape[1]), Ring(age, last))


def cut(past: Past, call: Call, block: int, horizon: int, time: int) -> tuple[Past, Call]:
    """Groups and call of blocks of tokens, each with ``horizon`` rows of its own past in front."""
    *others, window = past
    rows = window.rows
    missing = horizon - (rows.shape[1] - time)
    if missing > 0:
        rows = F.pad(rows, (0, 0, missing, 0))
    elif missing < 0:
        rows = rows[:, -missing:]
    folded = call.once(("blocks", block), lambda: Call(call.tokens.cut(block)))
    groups = [Group(windows.fold(group.rows, block), folded_place(group.place, block)) for group in others]
    groups.append(Group(windows.fold_keys(rows, horizon, block), Rows()))
    return tuple(groups), replace(folded, probe=call.probe)


def judge(objective: Objective, found: Judged | Tensor | None, call: Call) -> None:
    """Tell an auxiliary loss, the mean over what counts of the valid tokens."""
    if found is None:
        return
    if isinstance(found, Tensor):
        found = Judged(found[:, None], torch.ones_like(found, dtype=torch.bool)[:, None])
    counts = (found.counts & call.tokens.valid()[:, None]).to(found.loss.dtype)
    call.probe.loss(objective.name, (found.loss * counts).sum() / counts.sum().clamp(min=1))


def heads_beside(rows: Float[Tensor, "B S X"], others: Float[Tensor, "*b S Y"], heads: int) -> Float[Tensor, "B S Z"]:
    """The channels of others beside those of the rows, head by head."""
    parts = [part.unflatten(-1, (heads, -1)) for part in (rows, others)]
    return torch.cat([parts[0], parts[1].expand(*rows.shape[:2], -1, -1)], -1).flatten(2)


def joined_heads(mixed: Float[Tensor, "B H T V"]) -> Float[Tensor, "B T HV"]:
    """Outputs of all heads side by side."""
    batch, heads, time, width = mixed.shape
    if time == 1:
        return mixed.reshape(batch, 1, heads * width)
    return mixed.transpose(1, 2).reshape(batch, time, heads * width)


def foldable(past: Past) -> bool:
    """Whether all groups in front of the window belong to single tokens, so that they can be cut along them."""
    return all(group.per_token for group in past[:-1])


def folded_place(place: Place, block: int) -> At:
    """The place of a group that is cut along its tokens."""
    assert isinstance(place, At)
    return replace(place, distance=windows.fold(place.distance, block), visible=windows.fold(place.visible, block))


def back(group: Heads, behind: Int[Tensor, " T"], edge: int) -> Int[Tensor, "..."]:
    """Tokens from the rows of a group back from the last token of the call, with the axes of its keys."""
    place = group.place
    if isinstance(place, Ring):
        return place.age
    if isinstance(place, Rows):
        return windows.descending(group.k.shape[2], group.k.device)
    if group.per_token:
        return (behind[:, None] + place.distance.clamp(max=place.farthest or edge))[:, None]
    return place.distance[:, None, -1]


def side_by_side(parts: list[Tensor]) -> Tensor:
    """Groups along the axis of keys; one alone costs nothing."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


def build(dims: Dims, plan: Plan, options: NoOptions) -> Attention:
    """S0."""
    return Attention(dims, plan)


SPEC = Spec(
    id="S0",
    name="softmax",
    axis="mixer",
    paper="Vaswani et al. 2017, arXiv 1706.03762, equation 1",
    summary="Scaled dot products, normalised by a softmax over the window.",
    build=build,
    example={"mixer": "softmax"},
    traits=Traits(family="EXPL", state="memory D (training), memory kv_heads (Dh + Dv) more (acting)", time="T"),
    offers=(
        *(Feature.SCORES, Feature.LOGITS, Feature.PRODUCTS, Feature.CHANNELS, Feature.OUTPUTS, Feature.COMMON_KEYS),
        *(Feature.PATTERNS, Feature.ROWS, Feature.SLOTS, Feature.KEYS, Feature.RETRIEVAL),
    ),
    formula="o_t = sum_s softmax_s(q_t k_s / sqrt(Dh)) v_s",
)
