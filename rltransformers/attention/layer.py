"""Attention over groups of key rows: project, split into heads, let an engine compute, join the heads.

Axes: B batch, H heads, G key-value heads, T tokens, N key rows of a group, L distances, K head width, V value width,
E = G (K + V). Long calls are cut into blocks with memory rows of their own.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.attention import engines
from rltransformers.attention.plan import Plan
from rltransformers.attention.reach import Columns, allowed_at, block_of, columns_of, constants_of
from rltransformers.attention.roles import HandUp, Heads, View, joined_heads, joint_values, turn_rows
from rltransformers.functional import windows
from rltransformers.functional.call import EVERY, NOBODY, Call, chosen
from rltransformers.functional.keys import Group, Past, Rows, cut_past
from rltransformers.mixers.interface import Dims, Mixed, RowMixer
from rltransformers.positions.interface import BY_PLACE, Acts, at_places

OF_KEYS_AND_VALUES = Acts.KEY_SCORE | Acts.LABEL | Acts.VALUE
FEW_QUERIES = 8  # up to here PyTorch's kernel is faster: it reads keys where they lie, not moved head by head


class Attention(RowMixer):
    """Scaled dot products, normalized by a softmax over all keys in view, with the parts of a plan plugged in."""

    def __init__(self, dims: Dims, plan: Plan) -> None:
        super().__init__()
        self.dims, self.plan = dims, plan
        self.position, self.prior, self.selection = plan.position, plan.prior, plan.selection
        self.head_mixing, self.span, self.chooser = plan.head_mixing, plan.span, plan.chooser
        if plan.store is not None:
            self.retriever = plan.store
        self.score = plan.score
        self.horizon, self.sinks = plan.pattern.horizon, plan.pattern.sinks
        self.query_width = self.score.query_width
        self.key_width = self.score.key_width + dims.kv_heads * plan.position.channels
        self.constants = nn.ModuleList(constants_of(plan.pattern))
        self.placed = bool(plan.position.acts & BY_PLACE)
        self.mixes_values = plan.prior.mixes_values
        self.few = 0 if plan.position.acts & OF_KEYS_AND_VALUES else self.score.few
        self.project = dims.projection(dims.width, self.score.projected)  # rows of the weight: queries, keys, values
        self.output = plan.combine or dims.projection(dims.heads * dims.value_dim, dims.width)
        self.joint = 1 if plan.combine is None else plan.combine.joint_values

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """State tensors of the chooser and of the prior."""
        chooser = {} if self.chooser is None else self.chooser.state_shapes()
        return chooser | self.plan.prior.state_shapes(self.horizon + 1)

    def queries_and_keys(self, h: Float[Tensor, "B T D"]) -> tuple[Float[Tensor, "B T Q"], Float[Tensor, "B T E"]]:
        """Queries, and keys and values side by side, not turned."""
        return self.score.normal_rows(F.linear(h, self.project.weight, self.project.bias), h)

    def keys(self, h: Float[Tensor, "B S D"]) -> Float[Tensor, "B S E"]:
        """Keys and values side by side, not turned."""
        bias, own = self.project.bias, self.score.own
        return self.score.normal_keys(F.linear(h, self.project.weight[own:], None if bias is None else bias[own:]))

    def placed_queries(self, query: Float[Tensor, "B T Q"], p: Int[Tensor, "B T"]) -> Float[Tensor, "B T R"]:
        """Queries with the projected code, or the channels, of their positions."""
        weight = self.project.weight[: self.query_width]
        return at_places(self.position, query, p, weight, self.position.query_channels, self.dims.heads)

    def placed_keys(self, keys: Float[Tensor, "B S F"], p: Int[Tensor, "*b S"]) -> Float[Tensor, "B S E"]:
        """The same of keys; values stay as they are."""
        position, weight, groups = self.position, self.project.weight[self.score.own :], self.dims.kv_heads
        return self.score.with_keys(
            keys, lambda k: at_places(position, k, p, weight[: k.shape[-1]], position.key_channels, groups)
        )

    def tables(self, reach: int) -> dict[str, Tensor]:
        """Scores by distance, and the turns of rows by how far they lie back."""
        weight = self.project.weight
        distance = torch.arange(reach, device=weight.device)
        scores = engines.tables_of(self.plan, distance, weight)
        return scores | ({"circle": self.position.circle(distance, weight)} if self.plan.turns else {})

    def table_sources(self) -> list[nn.Module]:
        """The position, and the parts that score distances."""
        parts: list[nn.Module] = [part for part in self.plan.parts if part.scores_distances]
        return [self.position, *parts] if self.plan.turns or self.plan.position_knows_distances else parts

    def forward(
        self, h: Tensor, query: Tensor, past: Past, state: dict[str, Tensor], call: Call, below: Tensor | None
    ) -> Mixed:
        """Mix the wanted tokens; hand up what a part of the next layer builds on.

        Of tokens that are not wanted only the keys count; where nothing depends on the order of queries, theirs are not
        even compared.
        """
        plan, listens, values = self.plan, call.probe.listens, None
        if self.mixes_values:
            (past, values), below = plan.prior.mixed_values(past, below, self.dims.kv_heads * self.dims.value_dim), None
        if listens:
            self.report_inputs(h, past[-1], call)
        elif call.wanted == NOBODY and self.chooser is None and plan.hands is HandUp.NOTHING and not plan.by_token:
            return Mixed(h[:, :0], state)
        if plan.hands is HandUp.DISTANCES:
            below, state = plan.prior.carry(below, state, call)
        elif plan.by_token:
            below, kept = plan.prior.of_tokens(h, state, call)
            state = state | kept
        wanted = call.wanted
        if listens and wanted != EVERY:
            call = replace(call, wanted=EVERY)
        heads, state, handed = self.heads(h, query, past, state, call, below)
        if listens:
            for objective in plan.objectives:
                outputs = heads.unflatten(-1, (self.dims.heads, -1)).transpose(1, 2)
                objective.report(objective.of_outputs(outputs), call)
            heads = chosen(heads, wanted)
        return Mixed(self.combined(heads, h, wanted), state, handed if values is None else values)

    def report_inputs(self, h: Float[Tensor, "B T D"], window: Group, call: Call) -> None:
        """Report the losses of the parts, and of the values that the tokens themselves offer."""
        for part in self.plan.parts:
            part.tell(h, call)
        if self.plan.objectives and isinstance(window.place, Rows):
            values = self.split(window.rows[:, -h.shape[1] :], shares=True)[1]
            for objective in self.plan.objectives:
                objective.report(objective.of_values(values), call)

    def combined(
        self, heads: Float[Tensor, "B t HV"], h: Float[Tensor, "B T D"] | None = None, wanted: slice = EVERY
    ) -> Float[Tensor, "B t D"]:
        """The outputs of the heads of the ``wanted`` tokens as the output of the layer with inputs ``h``."""
        output = self.output
        if isinstance(output, nn.Linear):  # without the call of a module, which shows in a step of acting
            return F.linear(heads, output.weight, output.bias)
        out: Tensor = output(heads, chosen(h, wanted)) if output.reads_inputs and h is not None else output(heads)
        return out

    def heads(
        self, h: Tensor, query: Tensor, past: Past, state: dict[str, Tensor], call: Call, below: Tensor | None
    ) -> tuple[Float[Tensor, "B t HV"], dict[str, Tensor], Tensor | None]:
        """What the heads read for the wanted tokens, side by side; the state; what is handed up."""
        wanted = call.wanted
        if self.chooser is not None:
            out, handed, state = self.choose(h, query, past, state, call, below)
            return chosen(joined_heads(out), wanted), state, handed
        (batch, time), (groups, block) = query.shape[:2], self.in_blocks(past, call)
        if not block:
            early = EVERY if self.plan.ordered else wanted
            out, handed = self.attend(h, chosen(query, early), groups, call, below, early)
            joined = joined_heads(out)
            return joined if early is wanted else chosen(joined, wanted), state, handed
        by_token = self.plan.by_token
        if by_token and below is not None:
            below = windows.fold(below, block)
        out, handed = self.attend(windows.fold(h, block), windows.fold(query, block), groups, call.cut(block), below)
        if by_token and handed is not None:
            handed = windows.unfold_tokens(handed, time, batch)
        return chosen(windows.unfold_tokens(joined_heads(out), time, batch), wanted), state, handed

    def in_blocks(self, past: Past, call: Call) -> tuple[Past, int]:
        """What queries see, cut into blocks, and the tokens of a block: 0 for a call that is not cut."""
        block = block_of(past, self.horizon)
        return (cut_past(past, block, self.horizon, call.tokens.p.shape[1]) if block else past), block

    def attend(
        self, h: Tensor, query: Tensor, past: Past, call: Call, below: Tensor | None, early: slice = EVERY
    ) -> tuple[Float[Tensor, "B H T V"], Tensor | None]:
        """One block: the queries of the tokens ``early`` against all keys at once."""
        plan, q = self.plan, self.score.split_queries(query)
        content = self.position.content_query(q)
        columns = columns_of(plan.pattern, [(group.place, group.rows.shape[-2]) for group in past], call)
        scores, listed = engines.scores_by_distance(plan, q, columns, call, below)
        engine = self.engine(q, past, scores, columns, call)
        shares = engine is engines.fused and q.shape[2] == 1  # a token's query heads stand in groups that share keys
        absorbs = 0 < q.shape[2] <= self.few
        if absorbs:
            content, groups = self.score.absorbed(content, past)
        else:
            groups = [Heads(*self.split(group.rows, shares), group.place) for group in past]
        if plan.turns:
            content, groups = turn_rows(self.position, content, groups, self.horizon, call)
        if engine is None:
            out, handed = self.weigh(content, groups, scores, listed, View(h, columns, below), call)
        else:
            out, handed = engines.in_one(engine, plan, content, groups, scores, columns, early, self.training), None
        return self.score.of_latents(out) if absorbs else out, handed

    def engine(
        self, q: Tensor, past: Past, scores: Tensor | None, columns: Columns, call: Call
    ) -> Callable[..., Tensor] | None:
        """Choose ``fused``, ``banded``, or None for ``dense``, which shows its weights; all agree."""
        plan, probe, time = self.plan, call.probe, q.shape[2]
        reads_weights = probe.reads_weights or (probe.listens and plan.judges_weights)
        if plan.explicit or reads_weights or (len(past) > 1 and any(group.per_token for group in past)):
            return None
        drops = plan.dropout > 0.0 and self.training and q.device.type == "cpu"
        learns = torch.is_grad_enabled() and q.requires_grad
        if not drops and (scores is None or (time <= FEW_QUERIES and not learns)):
            return engines.fused
        if self.score.sink is not None:
            return None
        fits = columns.contiguous and len(columns.listed) <= columns.mask.shape[-1] - time + 1
        return engines.banded if scores is None or fits else None

    def choose(
        self, h: Tensor, query: Tensor, past: Past, state: dict[str, Tensor], call: Call, below: Tensor | None
    ) -> tuple[Float[Tensor, "B H T V"], Tensor | None, dict[str, Tensor]]:
        """The keys that the chooser picks from the window for every query, as far as the pattern allows; all others."""
        plan, chooser = self.plan, self.chooser
        assert chooser is not None
        q = chooser.prepare(self.score.split_queries(query))
        split = [(self.split(group.rows), group.place) for group in past]
        groups = [Heads(chooser.prepare(k), v, place) for (k, v), place in split]
        selected, state = chooser.choose(q, groups[-1], state, call)
        selected = replace(selected, at=allowed_at(plan.pattern, selected.at, call.tokens.p))
        content, groups = self.position.content_query(q), [*groups, *selected.others]
        if plan.turns:
            content, groups = turn_rows(self.position, content, groups, self.horizon, call)
        others, window, made = groups[: len(past) - 1], groups[len(past) - 1], groups[len(past) :]
        k, v = windows.fetch(window.k, selected.index), windows.fetch(window.v, selected.index)
        groups = [*others, *made, Heads(k, v, selected.at, selected.shift)]
        columns = columns_of(plan.pattern, [(group.place, group.k.shape[-2]) for group in groups], call)
        scores, listed = engines.scores_by_distance(plan, q, columns, call, below)
        return *self.weigh(content, groups, scores, listed, View(h, columns, below), call), state

    def weigh(
        self, q: Tensor, groups: list[Heads], scores: Tensor | None, listed: dict[str, Tensor], view: View, call: Call
    ) -> tuple[Float[Tensor, "B H T V"], Tensor | None]:
        """Run the dense engine, report its weights, and take what the layer above builds on."""
        out, handed, weights = engines.dense(self.plan, q, groups, scores, listed, view, self.training)
        if call.probe.listens:
            if call.probe.reads_weights:
                engines.add_metrics(weights, view.columns, 1 - self.filled(call.tokens.p) / (self.horizon + 1), call)
            for objective in self.plan.objectives:
                objective.report(objective.of_weights(weights, view.columns, call.tokens), call)
        if self.plan.hands is HandUp.DISTANCES:
            handed = engines.rows_by_distance(handed, view.columns.visible, groups[-1], self.horizon + 1)
        return out, None if self.plan.hands is HandUp.NOTHING else handed

    def split(self, rows: Float[Tensor, "B *T N E"], shares: bool = False) -> tuple[Tensor, Tensor]:
        """Keys [B, H, *T, N, K] and values [B, H, *T, N, V]; [B, G, ...] where heads of queries share them."""
        k, v = self.score.split(rows)
        heads = self.dims.heads
        v = v if self.joint == 1 else joint_values(v, self.joint)
        if shares or k.shape[1] == v.shape[1] == heads:
            return k, v
        return k.repeat_interleave(heads // k.shape[1], 1), v.repeat_interleave(heads // v.shape[1], 1)

    def filled(self, p: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
        """Tokens of the window that exist."""
        return torch.minimum(p, self.plan.pattern.limits(p).amax(1)) + 1

    def constrain_(self) -> None:
        """Bring parameters back into their range after an optimizer step."""
        for part in self.plan.parts:
            part.constrain_()

    def maintain(self) -> None:
        """Let the chooser learn between collecting and learning."""
        if self.chooser is not None:
            self.chooser.maintain()
