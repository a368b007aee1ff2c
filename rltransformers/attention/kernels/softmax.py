"""Scaled dot-product attention over a window of rows, with every part that needs explicit logits plugged in.

Axes: B batch, H heads, G kv heads, T tokens, S key rows, L distances, K head width, V value width, E = G (K + V).
Logits are indexed by key; whatever depends on distance is computed once per distance and shifted (``windows.by_key``).
Long calls are cut into blocks as long as the window, each with its own memory rows, so work grows linearly with T.
"""

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.attention.heads.interface import HeadMixing
from rltransformers.attention.interface import Dims, Record, Slots
from rltransformers.attention.patterns.interface import Pattern
from rltransformers.attention.priors.interface import Prior
from rltransformers.attention.selections.interface import Selection
from rltransformers.attention.spans.interface import Span
from rltransformers.core.spec import Spec, Traits
from rltransformers.functional import windows
from rltransformers.functional.windows import Tokens
from rltransformers.positions.interface import Position

SMALLEST_BLOCK = 32  # below this, cutting a call into blocks costs more in small products than it saves


@dataclass(frozen=True)
class Parts:
    """What is plugged into dot-product attention, already built."""

    pattern: Pattern
    position: Position = field(default_factory=Position)
    selection: Selection = field(default_factory=Selection)
    prior: Prior = field(default_factory=Prior)
    head_mixing: HeadMixing = field(default_factory=HeadMixing)
    span: Span = field(default_factory=Span)
    dropout: float = 0.0


@dataclass(frozen=True)
class Keys:
    """All keys one call can see, in columns: sinks, then slots, then rows.

    Attributes:
        distance: [B or 1, T, N] distance of the sink and slot columns, clipped to the listed distances.
        visible: [B, H or 1, T, S_all].
        length: distances that are listed, L.
    """

    distance: Int[Tensor, "b T N"] | None
    visible: Bool[Tensor, "B h T S"]
    rows: int
    length: int

    def spread(self, per_distance: Tensor, time: int) -> Tensor:
        """[..., H, L] or [B, H, T, L] by distance to [.., H, T, S_all] by key."""
        if per_distance.dim() == 2:
            d = windows.distances(time, self.rows, per_distance.device).clamp(0, self.length - 1)
            by_row = per_distance[:, d][None]
        else:
            by_row = windows.by_key(per_distance, self.rows)
        if self.distance is None:
            return by_row
        table = per_distance[None, :, None, :] if per_distance.dim() == 2 else per_distance
        index = self.distance[:, None].expand(-1, table.shape[1], -1, -1)
        table = table.expand(len(index), -1, time, -1)
        columns = table.gather(-1, index)
        return torch.cat([columns, by_row.expand(len(columns), -1, -1, -1)], -1)


class SoftmaxAttention(nn.Module):
    """Multi-head attention over ``[sinks ; slots ; memory ; tokens]``; a window mixer."""

    def __init__(self, dims: Dims, parts: Parts) -> None:
        super().__init__()
        self.dims = dims
        self.pattern = parts.pattern
        self.position = parts.position
        self.selection = parts.selection
        self.prior = parts.prior
        self.head_mixing = parts.head_mixing
        self.span = parts.span
        self.dropout = parts.dropout
        self.horizon = parts.pattern.horizon
        self.sinks = parts.pattern.sinks
        self.key_width = dims.kv_heads * (dims.head_dim + dims.value_dim)
        self.query = nn.Linear(dims.width, dims.heads * dims.head_dim, bias=False)
        self.key_value = nn.Linear(dims.width, self.key_width, bias=False)
        self.output = nn.Linear(dims.heads * dims.value_dim, dims.width, bias=False)

    def keys(self, h: Float[Tensor, "B S D"]) -> Float[Tensor, "B S E"]:
        """Keys and values side by side, not rotated."""
        return self.key_value(h)

    def content(self, h: Float[Tensor, "B T D"], rows: Float[Tensor, "B S D"], seen: Tensor) -> Float[Tensor, "B T O"]:
        """What the queries ``h`` read from ``rows`` where ``seen`` [B, S], by content alone and with frozen weights."""
        q = F.linear(h, self.query.weight.detach()).unflatten(-1, (self.dims.heads, -1)).transpose(1, 2)
        k, v = (self.all_heads(part) for part in self.split(F.linear(rows, self.key_value.weight.detach())))
        logits = q @ k.transpose(-1, -2) / math.sqrt(self.dims.head_dim)
        weights = logits.masked_fill(~seen[:, None, None], torch.finfo(logits.dtype).min).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2)

    def forward(
        self,
        h: Float[Tensor, "B T D"],
        keys: Float[Tensor, "B S E"],
        tokens: Tokens,
        *,
        slots: Slots | None = None,
        sinks: Float[Tensor, "B T n E"] | None = None,
        carry: Tensor | None = None,
        record: Record | None = None,
        name: str = "",
    ) -> tuple[Float[Tensor, "B T D"], Tensor | None]:
        """Mixed tokens [B, T, D], and the unmasked logits when a prior of the next layer builds on them."""
        batch, time = h.shape[:2]
        block = max(self.horizon, SMALLEST_BLOCK)
        if slots is None and time > block:
            h, keys, tokens, sinks = self.cut(h, keys, tokens, sinks, block)
        out, carry = self.attend(h, keys, tokens, slots, sinks, carry, record, name)
        if record is not None:
            self.record_penalty(h, tokens, record, name)
        return windows.unfold_tokens(out, time, batch) if len(out) != batch or out.shape[1] != time else out, carry

    def cut(
        self, h: Tensor, keys: Tensor, tokens: Tokens, sinks: Tensor | None, block: int
    ) -> tuple[Tensor, Tensor, Tokens, Tensor | None]:
        """Blocks of ``block`` tokens as further batch rows, each with ``horizon`` rows of its own past in front."""
        missing = self.horizon - (keys.shape[1] - h.shape[1])
        if missing > 0:
            keys = F.pad(keys, (0, 0, missing, 0))
        elif missing < 0:
            keys = keys[:, -missing:]
        valid = windows.fold(tokens.valid(), block)
        p = windows.fold(tokens.p, block)
        folded = Tokens(
            p, windows.fold(tokens.timestep, block), windows.fold(tokens.live, block), p[:, 0] - 1, valid.sum(1)
        )
        sinks = None if sinks is None else windows.fold(sinks, block)
        return windows.fold(h, block), windows.fold_keys(keys, self.horizon, block), folded, sinks

    def attend(
        self,
        h: Tensor,
        key_rows: Tensor,
        tokens: Tokens,
        slots: Slots | None,
        sinks: Tensor | None,
        carry: Tensor | None,
        record: Record | None,
        name: str,
    ) -> tuple[Tensor, Tensor | None]:
        """One block: all logits at once."""
        time = h.shape[1]
        q = self.query(h).unflatten(-1, (self.dims.heads, -1)).transpose(1, 2)
        columns = self.columns(tokens, key_rows.shape[1], slots, sinks)
        row_k, row_v = self.split(key_rows)
        place = torch.arange(key_rows.shape[1], device=h.device, dtype=torch.float32)
        q_place = place[-time:]
        row_k = self.position.rotate(row_k, place)
        shared_k, shared_v = [row_k], [row_v]
        if slots is not None:
            slot_k, slot_v = self.split(slots.keys)
            slot_place = q_place[-1] - slots.distance[:, -1].to(q_place.dtype)
            shared_k.insert(0, self.position.rotate(slot_k, slot_place[:, None]))
            shared_v.insert(0, slot_v)
        k, v = (self.all_heads(torch.cat(parts, 2)) for parts in (shared_k, shared_v))
        turned = self.position.rotate(self.position.content_query(q), q_place)
        additive = self.additive(q, columns, time)
        explicit = self.explicit(additive, record) or sinks is not None
        if not explicit:
            bias = columns.visible
            if additive is not None:
                bias = additive.masked_fill(~columns.visible, torch.finfo(additive.dtype).min)
            dropout = self.dropout if self.training else 0.0
            o = F.scaled_dot_product_attention(turned, k, v, attn_mask=bias, dropout_p=dropout)
            return self.output(o.transpose(1, 2).flatten(2)), None
        logits = turned @ k.transpose(-1, -2) / math.sqrt(self.dims.head_dim)
        sink_v = None
        if sinks is not None and columns.distance is not None:
            sink_k, sink_v = self.split_sinks(sinks)
            sink_place = q_place[:, None] - columns.distance[..., : sinks.shape[2]].to(q_place.dtype)
            sink_k = self.position.rotate(sink_k, sink_place[:, None])
            sink_logits = (turned[..., None, :] * sink_k).sum(-1) / math.sqrt(self.dims.head_dim)
            logits = torch.cat([sink_logits, logits], -1)
        if additive is not None:
            logits = logits + additive
        logits = self.head_mixing.logits(logits)
        if carry is not None:
            logits = logits + carry
        weights = self.weigh(logits, columns, h, time)
        if record is not None and record.weights:
            self.record_weights(weights, columns, tokens, record, name)
        weights = F.dropout(self.head_mixing.weights(weights), self.dropout, self.training)
        o = self.mix(weights, v, sink_v, columns, time)
        return self.output(o.transpose(1, 2).flatten(2)), logits if self.prior.residual else None

    def explicit(self, additive: Tensor | None, record: Record | None) -> bool:
        """The one rule between the fused kernel and explicit weights."""
        return (
            self.head_mixing.mixes
            or self.selection.selects
            or self.prior.residual
            or type(self.span) is not Span
            or self.position.value_table(1) is not None
            or (record is not None and record.weights)
            or (additive is not None and additive.requires_grad)
        )

    def columns(self, tokens: Tokens, rows: int, slots: Slots | None, sinks: Tensor | None) -> Keys:
        """Distance and visibility of every key column."""
        p, time, device = tokens.p, tokens.p.shape[1], tokens.p.device
        limit = torch.minimum(self.pattern.limits(p), p[:, None])
        d = windows.distances(time, rows, device)
        tables = self.pattern.tables(max(rows, 1), device)
        visible = tables[:, d.clamp(min=0)] & (d >= 0) & (d <= limit[..., None])
        farthest = self.horizon
        distance: Tensor | None = None
        if sinks is not None:
            index = torch.arange(sinks.shape[2], device=device)
            away = p[..., None] - index
            outside = (away[:, None] > self.pattern.limits(p)[..., None]) & (away >= 0)[:, None]
            owned = index < self.pattern.sink_counts(device)[:, None, None]
            farthest = self.horizon + 1
            distance = away.clamp(0, farthest)
            visible = torch.cat([outside & owned, visible], -1)
        if slots is not None:
            distance = slots.distance.clamp(min=0)
            farthest = max(self.horizon, int(distance.max())) if distance.numel() else self.horizon
            visible = torch.cat([slots.visible[:, None].expand(-1, visible.shape[1], -1, -1), visible], -1)
        length = farthest + 1 if distance is not None else min(self.horizon + 1, rows)
        return Keys(distance, visible, rows, length)

    def additive(self, q: Tensor, columns: Keys, time: int) -> Tensor | None:
        """Position and prior scores per key, None when there are none."""
        terms = [self.position.logits(q, columns.length), self.prior.logits(columns.length)]
        spread = [columns.spread(term, time) for term in terms if term is not None]
        return sum(spread[1:], spread[0]).to(q.dtype) if spread else None

    def weigh(self, logits: Tensor, columns: Keys, h: Tensor, time: int) -> Tensor:
        """Mask, select, normalise, apply the span."""
        lowest = torch.finfo(logits.dtype).min
        logits = logits.masked_fill(~columns.visible, lowest)
        kept = self.selection.keep(logits)
        if kept is not None:
            logits = logits.masked_fill(~kept, lowest)
        weights = logits.softmax(-1)
        mask = self.span.mask(h, columns.length)
        if mask is None:
            return weights
        weights = weights * columns.spread(mask, time)
        return weights / (weights.sum(-1, keepdim=True) + 1e-8)

    def mix(self, weights: Tensor, v: Tensor, sink_v: Tensor | None, columns: Keys, time: int) -> Tensor:
        """Weighted sum of values, plus value vectors by distance."""
        if sink_v is None:
            o = weights @ v
        else:
            n = sink_v.shape[3]
            o = weights[..., n:] @ v + (weights[..., :n, None] * sink_v).sum(-2)
        table = self.position.value_table(columns.length)
        if table is None:
            return o
        d = windows.distances(time, columns.rows, weights.device)
        by_row = table[d.clamp(0, columns.length - 1)]
        extra = torch.einsum("bhts,tsv->bhtv", weights[..., -columns.rows :], by_row)
        if columns.distance is not None:
            extra = extra + torch.einsum("bhtn,btnv->bhtv", weights[..., : -columns.rows], table[columns.distance])
        return o + extra

    def split(self, rows: Float[Tensor, "B S E"]) -> tuple[Tensor, Tensor]:
        """Keys [B, G, S, K] and values [B, G, S, V]."""
        k, v = rows.split([self.dims.kv_heads * self.dims.head_dim, self.dims.kv_heads * self.dims.value_dim], -1)
        groups = self.dims.kv_heads
        return k.unflatten(-1, (groups, -1)).transpose(1, 2), v.unflatten(-1, (groups, -1)).transpose(1, 2)

    def split_sinks(self, sinks: Float[Tensor, "B T n E"]) -> tuple[Tensor, Tensor]:
        """Keys [B, H, T, n, K] and values [B, H, T, n, V]."""
        k, v = self.split(sinks.flatten(1, 2))
        time = sinks.shape[1]
        return self.all_heads(k).unflatten(2, (time, -1)), self.all_heads(v).unflatten(2, (time, -1))

    def all_heads(self, grouped: Float[Tensor, "B G S X"]) -> Float[Tensor, "B H S X"]:
        """Every query head next to its key/value head."""
        repeats = self.dims.heads // self.dims.kv_heads
        return grouped if repeats == 1 else grouped.repeat_interleave(repeats, 1)

    def record_penalty(self, h: Tensor, tokens: Tokens, record: Record, name: str) -> None:
        """Mean span, the auxiliary loss X2."""
        penalty = self.span.penalty(h, tokens.valid())
        if penalty is not None:
            record.add_loss("span", penalty)
            record.metrics[f"{name}/span"] = penalty.detach()

    def record_weights(self, weights: Tensor, columns: Keys, tokens: Tokens, record: Record, name: str) -> None:
        """Look-back distance in tokens, entropy in nats, and the share of the window that no token fills yet."""
        with torch.no_grad():
            valid = tokens.valid().to(weights.dtype)[:, None]
            count = valid.sum().clamp(min=1) * self.dims.heads
            d = windows.distances(weights.shape[2], columns.rows, weights.device).clamp(min=0)[None]
            if columns.distance is not None:
                others = columns.distance
                d = torch.cat([others, d.expand(len(others), -1, -1)], -1)
            far = (weights * d[:, None]).sum(-1)
            entropy = -(weights * weights.clamp(min=1e-12).log()).sum(-1)
            record.metrics[f"{name}/lookback"] = (far * valid).sum() / count
            record.metrics[f"{name}/entropy"] = (entropy * valid).sum() / count
            seen = torch.minimum(tokens.p, self.pattern.limits(tokens.p).amax(1)) + 1
            empty = 1 - seen / (self.horizon + 1)
            record.metrics[f"{name}/empty_slots"] = (empty.to(valid.dtype) * valid[:, 0]).sum() / valid.sum().clamp(
                min=1
            )
            mass = weights.new_zeros(self.dims.heads, columns.length)
            index = d[:, None].expand_as(weights).clamp(max=columns.length - 1)
            weighted = (weights * valid[..., None]).transpose(0, 1).flatten(1)
            record.lookback[name] = mass.scatter_add_(
                1, index.transpose(0, 1).flatten(1), weighted
            ) / valid.sum().clamp(min=1)


def build(dims: Dims, parts: Parts) -> nn.Module:
    """S0."""
    return SoftmaxAttention(dims, parts)


SPEC = Spec(
    id="S0",
    name="softmax",
    axis="mixer",
    paper="Vaswani et al. 2017, arXiv 1706.03762, equation 1",
    summary="Scaled dot products, normalised by a softmax over the window.",
    build=build,
    example={"mixer": "softmax"},
    traits=Traits(family="EXPL", state="memory D (training), memory kv_heads (Dh + Dv) more (acting)", time="T"),
)
