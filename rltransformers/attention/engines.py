"""How attention computes: with explicit logits and weights, by PyTorch's fused kernel, or along bands; all agree.

``dense`` is a walk through the stages, and every other engine equals it. ``fused`` takes the scores of few queries.
The fused kernels take scores by distance only as a full [T, S] tensor, and not with a gradient, so ``banded``
serves segments: it adds them to the logits in place, through a strided view in which the same distance is the same
column, and the backward pass keeps nothing but the weights.

Axes: B batch, H heads, G key-value heads, T tokens, N keys of a group, S keys of all groups, L listed distances, K key
width, V value width, D model width.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from rltransformers.attention.plan import Plan
from rltransformers.attention.reach import Columns, beside, by_head
from rltransformers.attention.roles import HandUp, Heads, View
from rltransformers.functional import windows
from rltransformers.functional.call import EVERY, Call
from rltransformers.functional.keys import At, slots_of
from rltransformers.functional.modules import dropout, keep_factor
from rltransformers.functional.windows import FEW_TOKENS
from rltransformers.positions.interface import Acts

TABLES = "position", "factors", "keys", "parts"
"""Tables of the position: scores of queries, factors of products, scores of keys; and the sum of other parts."""


def tables_of(plan: Plan, distance: Int[Tensor, " L"], like: Tensor) -> dict[str, Tensor]:
    """Entries of ``TABLES`` under today's weights, first axis L, as far as the parts need them."""
    position, tables = plan.position, {}
    if Acts.SCORE in position.acts:
        tables["position"] = position.of_distances(distance, like)
    if Acts.FACTOR in position.acts:
        tables["factors"] = position.factors(distance, like)
    if Acts.KEY_SCORE in position.acts:
        tables["keys"] = position.key_vectors(distance, like)
    scores = [part.of_distances(distance, like) for part in plan.parts if part.scores_distances]
    if scores:
        tables["parts"] = functools.reduce(Tensor.add, scores)
    return tables


def scores_by_distance(
    plan: Plan, q: Float[Tensor, "B H T K"], columns: Columns, call: Call, rows: Tensor | None
) -> tuple[Float[Tensor, "..."] | None, dict[str, Tensor]]:
    """Scores by listed distance, [B, H, T, L] or [H, L], or None when there are none; ``TABLES`` of these distances.

    Args:
        rows: what came from below, or, of a prior that ``scores_tokens``, its scores [B, T, H, l].
    """
    listed = {}
    if plan.scores_distances:
        places = {name: f"{call.place}.{name}" for name in TABLES}
        tables = {name: call.tables[place] for name, place in places.items() if place in call.tables}
        listed = {name: table.index_select(0, columns.listed) for name, table in tables.items()}
        listed = listed or tables_of(plan, columns.listed, q)
    scores = plan.position.scores(q, listed["position"]) if "position" in listed else None
    if "parts" in listed:
        parts = listed["parts"].T
        scores = parts if scores is None else scores + (parts[:, None] if scores.dim() == 4 else parts)
    if scores is not None and scores.dtype != q.dtype:
        scores = scores.to(q.dtype)
    own = [part.of_queries(q, columns.listed, call.tokens) for part in plan.on_queries]
    if not plan.score.plain and (score := plan.score.by_distance(q, columns.listed)) is not None:
        own.append(score)
    if plan.prior.scores_tokens and rows is not None:
        index = columns.listed.clamp(max=rows.shape[-1] - 1)
        own.append(rows.index_select(-1, index).transpose(1, 2).to(q.dtype))
    if not own:
        return scores, listed
    shared = [] if scores is None else [scores[:, None] if scores.dim() == 2 else scores]
    return functools.reduce(Tensor.add, [*own, *shared]), listed


def dense(
    plan: Plan,
    query: Float[Tensor, "B H T K"],
    groups: list[Heads],
    scores: Float[Tensor, "..."] | None,
    listed: dict[str, Tensor],
    view: View,
    training: bool,
) -> tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H T S"], Float[Tensor, "B H T S"]]:
    """Outputs, what the layer above may build on (the unmasked logits, or weights), and every head's own weights.

    Where the plan has a store that ``weighs``, every output ends with the logarithm of the sum of exponentials.

    Args:
        query: as it meets contents, turned where keys are.
        scores: by listed distance, see ``scores_by_distance``.
        listed: ``TABLES`` of the listed distances.
    """
    columns = view.columns
    if plan.prior.takes_weights:
        assert view.below is not None  # the first layer of a group handed them on
        return read(plan, view.below, groups, columns), view.below, view.below
    spread = None if scores is None else columns.spread(scores)
    if not plan.score.plain:
        logits_of = functools.partial(unmasked_logits, plan, groups, spread, listed, columns)
        query = plan.score.settled(query, groups, logits_of, columns.visible)
    logits = unmasked_logits(plan, groups, spread, listed, columns, query)
    for part in plan.on_logits:
        logits = part.logits(logits, view)
    handed = logits
    logits = logits.masked_fill(~columns.visible, torch.finfo(logits.dtype).min)
    for part in plan.on_masked_logits:
        logits = part.masked_logits(logits, view)
    sink, keys = plan.score.sink, logits.shape[-1]
    logits = logits if sink is None else with_sink(logits, sink)
    weights = logits.softmax(-1)
    weights = weights if sink is None else weights[..., :keys]
    if plan.chooser is not None:  # which may have found no key: the query reads nothing then
        weights = weights.masked_fill(~columns.visible, 0.0)
    for part in plan.on_weights:
        weights = part.weights(weights, view)
    mixed = weights
    for part in plan.on_mixed_weights:
        mixed = part.mixed_weights(mixed, view)
    if plan.hands is HandUp.WEIGHTS:
        handed = mixed
    mixed = dropout(mixed, plan.dropout) if training and plan.dropout else mixed
    out = read(plan, mixed, groups, columns)
    if plan.store is not None and plan.store.weighs:
        out = torch.cat([out, logits.logsumexp(-1, keepdim=True).to(out.dtype)], -1)
    return out, handed, weights


def with_sink(logits: Float[Tensor, "B H T S"], sink: Float[Tensor, " H"]) -> Float[Tensor, "B H T s"]:
    """Logits of all keys and, behind them, those of the heads' sinks."""
    return torch.cat([logits, sink.to(logits.dtype)[:, None, None].expand(*logits.shape[:3], 1)], -1)


def unmasked_logits(
    plan: Plan,
    groups: list[Heads],
    spread: Float[Tensor, "..."] | None,
    listed: dict[str, Tensor],
    columns: Columns,
    query: Float[Tensor, "B H T K"],
) -> Float[Tensor, "B H T S"]:
    """Scores of keys by contents: products, multiplied by distance, with the group's shifts; plus those by distance."""
    found = [plan.score.content(query, group) for group in groups]
    if plan.position.scale != 1.0:
        found = [each * plan.position.scale for each in found]
    if "factors" in listed:
        factors = columns.by_group(listed["factors"].T)
        found = [plan.position.multiplied(*each) for each in zip(found, factors, strict=True)]
    if "keys" in listed:
        scores = [of_keys(group, listed["keys"], index) for group, index in zip(groups, columns.index, strict=True)]
        found = [each + score for each, score in zip(found, scores, strict=True)]
    if Acts.LABEL in plan.position.acts and len(found) > 1:
        labels = plan.position.label_scores(query)
        found = [*(each + labels for each in found[:-1]), found[-1]]
    for number, group in enumerate(groups):
        if isinstance(group.place, At) and group.place.shift:
            found[number] = found[number] + group.place.shift
        if group.shift is not None:
            found[number] = found[number] + group.shift
    logits = beside(found)
    return logits if spread is None else logits + spread


def of_keys(group: Heads, vectors: Float[Tensor, "L H K"], index: Tensor | None) -> Float[Tensor, "B H T N"]:
    """Products of keys with the vectors of their listed distances, which ``Columns.index`` tells."""
    if index is None:
        return (group.k * vectors.transpose(0, 1)).sum(-1)[:, :, None]
    index, (listed, heads) = by_head(index), vectors.shape[:2]
    if group.per_token or index.shape[2] <= FEW_TOKENS:
        first = torch.arange(heads, device=index.device)[:, None, None] * listed
        own = vectors.transpose(0, 1).flatten(0, 1)[first + index]
        return ((group.k if group.per_token else group.k[:, :, None]) * own).sum(-1)
    products = vectors.permute(1, 0, 2) @ group.k.transpose(-1, -2)
    return products.gather(2, index.expand(*products.shape[:2], -1, -1))


def read(
    plan: Plan, weights: Float[Tensor, "B H T S"], groups: list[Heads], columns: Columns
) -> Float[Tensor, "B H T V"]:
    """Weighted sum of values, plus value vectors by distance."""
    counts = [group.k.shape[-2] for group in groups]
    parts = weights.split_with_sizes(counts, -1) if len(groups) > 1 else (weights,)
    outputs = [
        (part[..., None] * group.v).sum(-2) if group.per_token else part @ group.v
        for part, group in zip(parts, groups, strict=True)
    ]
    if Acts.VALUE in plan.position.acts:
        table = plan.position.value_table(len(columns.listed), weights)
        outputs += [vectors(part, table[distance]) for part, distance in zip(parts, columns.distances(), strict=True)]
    return functools.reduce(Tensor.add, outputs)


def vectors(weights: Float[Tensor, "B H T N"], table: Float[Tensor, "b h T N V"]) -> Float[Tensor, "B H T V"]:
    """Weighted sums of vectors of queries and keys, which are not copied for streams and heads that share them."""
    if table.shape[1] > 1:
        return torch.einsum("bhtn,bhtnv->bhtv", weights, table)
    if table.shape[0] > 1:
        return torch.einsum("bhtn,btnv->bhtv", weights, table[:, 0])
    return torch.einsum("bhtn,tnv->bhtv", weights, table[0, 0])


def rows_by_distance(
    values: Float[Tensor, "B H T S"], visible: Bool[Tensor, "b h t S"], window: Heads, length: int
) -> Float[Tensor, "B T H L"]:
    """Values of the window's rows, the last columns, at distances 0 .. length - 1; 0 where no row is visible."""
    count, time = window.k.shape[-2], values.shape[2]
    values, visible = values[..., -count:], visible[..., -count:]
    back = torch.arange(length, device=values.device) + windows.descending(time, values.device)[:, None]
    row = slots_of(count - 1 - back, window.place, count)
    index = row.clamp(min=0).expand(*values.shape[:2], -1, -1)
    return values.masked_fill(~visible, 0.0).gather(-1, index).masked_fill(row < 0, 0.0).transpose(1, 2)


@torch.no_grad()
def add_metrics(weights: Float[Tensor, "B H T S"], columns: Columns, empty: Float[Tensor, "B T"], call: Call) -> None:
    """Add look-back, entropy and empty slots to the record.

    Look-back is in tokens, entropy in nats, empty slots are the share of the window that no token fills yet.
    """
    probe, heads = call.probe, weights.shape[1]
    valid = call.tokens.valid().to(weights.dtype)[:, None]
    count = valid.sum().clamp(min=1) * heads
    distance = beside(columns.distances()).expand_as(weights)
    far = (weights * distance).sum(-1)
    entropy = -(weights * weights.clamp(min=1e-12).log()).sum(-1)
    probe.metric("lookback", (far * valid).sum() / count)
    probe.metric("entropy", (entropy * valid).sum() / count)
    probe.metric("empty_slots", (empty.to(valid.dtype) * valid[:, 0]).sum() / valid.sum().clamp(min=1))
    mass = weights.new_zeros(heads, columns.listed.shape[0])
    index = distance.transpose(0, 1).flatten(1)
    mass = mass.scatter_add_(1, index, (weights * valid[..., None]).transpose(0, 1).flatten(1))
    probe.lookback(mass / valid.sum().clamp(min=1))
    if probe.reads_tokens:
        by_token = weights.new_zeros(*weights.shape[:3], len(columns.listed)).scatter_add_(-1, distance, weights)
        probe.attention(by_token.transpose(1, 2))


def in_one(
    engine: Callable[..., Tensor],
    plan: Plan,
    query: Float[Tensor, "B H T K"],
    groups: list[Heads],
    scores: Float[Tensor, "..."] | None,
    columns: Columns,
    early: slice,
    training: bool,
) -> Float[Tensor, "B H T V"]:
    """``fused`` or ``banded`` over the keys of all groups side by side, for the queries of the tokens ``early``."""
    k, v = groups[0].k, groups[0].v
    if len(groups) > 1:
        k, v = torch.cat([group.k for group in groups], 2), torch.cat([group.v for group in groups], 2)
    if k.shape[1] == 1 and (engine is banded or query.shape[2] > 1):  # one key of all heads, which one token shares
        k, v = (rows.expand(-1, query.shape[1], -1, -1) for rows in (k, v))
    if early != EVERY:
        columns = replace(columns, mask=columns.mask[:, :, early])
    rate = plan.dropout if training else 0.0
    if engine is banded:
        return banded(query, k, v, scores, columns.mask, rate)
    return fused(query, k, v, scores, columns, rate, plan.score.sink)


def fused(
    query: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B G S K"],
    v: Float[Tensor, "B G S V"],
    scores: Float[Tensor, "..."] | None,
    columns: Columns,
    rate: float,
    sink: Float[Tensor, " H"] | None = None,
) -> Float[Tensor, "B H T V"]:
    """The kernel of PyTorch; scores by distance become a bias of every query and key, a sink one more key of value 0.

    Where heads share keys (G < H, one token only), they stand side by side as the tokens of G heads: every key is read
    once.
    """
    bias = columns.mask if columns.mask.dtype == query.dtype else columns.mask.to(query.dtype)
    if scores is not None:
        bias = columns.spread(scores) + bias
    (batch, heads, time), groups = query.shape[:3], k.shape[1]
    if sink is not None:
        bias = with_sink(bias.expand(batch, heads, time, -1), sink)
        k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
    if groups != heads:
        query = query.reshape(batch, groups, heads // groups, -1)
        bias = bias if bias.shape[1] == 1 else bias.reshape(bias.shape[0], groups, heads // groups, -1)
    if time == 1 and torch.compiler.is_compiling():
        # A compiler joins these to two passes over keys and values as they lie; a kernel would be called from outside.
        logits = ((query * query.shape[-1] ** -0.5)[:, :, :, None] * k[:, :, None]).sum(-1) + bias
        out = (logits.softmax(-1)[..., None] * v[:, :, None]).sum(3)
    else:
        out = F.scaled_dot_product_attention(query, k, v, attn_mask=bias, dropout_p=rate)
    return out if groups == heads else out.reshape(batch, heads, 1, -1)


def banded(
    query: Float[Tensor, "N H T K"],
    key: Float[Tensor, "N H S K"],
    value: Float[Tensor, "N H S V"],
    by_distance: Float[Tensor, "..."] | None,
    mask: Float[Tensor, "N h T S"],
    dropout: float = 0.0,
) -> Float[Tensor, "N H T V"]:
    """``softmax(q k^T / sqrt(K) + b + mask) v`` with b_ts = by_distance[.., t, L - 1 - d], d = S - T + t - s.

    Args:
        by_distance: [N, H, T, L] or [H, L], oldest distance L - 1 first; at most the S - T memory keys and the
            token's own, so L <= S - T + 1. Keys further away get nothing. None: b = 0.
        mask: 0 where a query may look and minus infinity elsewhere; for all heads or per head.
        dropout: share of the weights that is set to 0.

    Under autocast everything is computed in its dtype, as the fused kernels do.
    """
    kind = query.device.type
    if torch.is_autocast_enabled(kind):
        low = torch.get_autocast_dtype(kind)
        query, key, value = query.to(low), key.to(low), value.to(low)
        by_distance = None if by_distance is None else by_distance.to(low)
    mask = mask.to(query.dtype)
    n, heads, time, _ = query.shape
    factor = keep_factor(mask.new_empty(n * heads, time, key.shape[2]), dropout) if dropout else None
    out: Tensor = _Banded.apply(query, key, value, by_distance, mask, factor)
    return out


def diagonals(scores: Float[Tensor, "N H T S"], length: int) -> Float[Tensor, "N H T L"]:
    """View of contiguous scores in which column l holds distance L - 1 - l of every query."""
    n, heads, time, keys = scores.shape
    stride = (heads * time * keys, time * keys, keys + 1, 1)
    return scores.as_strided((n, heads, time, length), stride, scores.storage_offset() + keys - time - length + 1)


class _Banded(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        by_distance: Tensor | None,
        mask: Tensor,
        factor: Tensor | None,
    ) -> Tensor:
        n, heads, time, _ = query.shape
        scale = query.shape[-1] ** -0.5
        q, k, v = (part.flatten(0, 1) for part in (query, key, value))
        with torch.autocast(query.device.type, enabled=False):
            logits = q.new_empty(n, heads, time, key.shape[2]).copy_(mask)
            logits.flatten(0, 1).baddbmm_(q, k.transpose(1, 2), alpha=scale)
            if by_distance is not None:
                per_token = by_distance[:, None] if by_distance.dim() == 2 else by_distance
                diagonals(logits, by_distance.shape[-1]).add_(per_token)
            weights = logits.softmax(-1).flatten(0, 1)
            out = torch.bmm(weights if factor is None else weights * factor, v)
        ctx.save_for_backward(q, k, v, weights, factor)
        ctx.by_distance = () if by_distance is None else by_distance.shape
        return out.unflatten(0, (n, heads))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights, factor = ctx.saved_tensors
        n, heads = gradient.shape[:2]
        scale = q.shape[-1] ** -0.5
        g = gradient.flatten(0, 1)
        for_weights = torch.bmm(g, v.transpose(1, 2))
        if factor is not None:
            for_weights *= factor
        scores = torch._softmax_backward_data(for_weights, weights, -1, weights.dtype)
        for_query = torch.baddbmm(q, scores, k, beta=0, alpha=scale)
        for_key = torch.baddbmm(k, scores.transpose(1, 2), q, beta=0, alpha=scale)
        for_value = torch.bmm((weights if factor is None else weights * factor).transpose(1, 2), g)
        for_distance = None
        if ctx.needs_input_grad[3]:
            for_distance = diagonals(scores.unflatten(0, (n, heads)), ctx.by_distance[-1])
            for_distance = for_distance.sum((0, 2)) if len(ctx.by_distance) == 2 else for_distance.contiguous()
        return (*(part.unflatten(0, (n, heads)) for part in (for_query, for_key, for_value)), for_distance, None, None)
