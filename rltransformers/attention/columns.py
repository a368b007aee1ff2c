"""All keys of one call side by side: how far each lies from every query, and whether it is seen.

Axes: B batch, H heads (1 where heads agree), T tokens, S keys of all groups, L listed distances.
Whatever depends on the distance alone is computed once per listed distance and spread over the keys.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from rltransformers.attention.reach import Pattern
from rltransformers.functional import windows
from rltransformers.functional.call import Call, Tokens
from rltransformers.functional.keys import At, Place, Ring, Rows
from rltransformers.positions.interface import Acts

if TYPE_CHECKING:
    from rltransformers.attention.plan import Plan
    from rltransformers.attention.roles import Heads

TABLES = "position", "factors", "keys", "parts"
"""Tables of the position: scores of queries, factors of products, scores of keys; and the sum of other parts."""


@dataclass(frozen=True)
class Columns:
    """Distances and visibility.

    Attributes:
        mask: 0, or the shift of its place, where a key is seen, minus infinity elsewhere.
        listed: the distances for which scores are computed.
        index: per group, where its keys find their distance in ``listed``: [T, N], [B, T, N] or [B, H, T, N]; None for
            keys that are listed as they lie.
        contiguous: number of key rows where there are no others and they are contiguous in time, else 0.
    """

    mask: Float[Tensor, "B h T S"]
    listed: Int[Tensor, " L"]
    index: tuple[Tensor | None, ...]
    contiguous: int

    @property
    def visible(self) -> Bool[Tensor, "B h T S"]:
        """Where a query may look."""
        return self.mask > -math.inf

    def spread(self, scores: Float[Tensor, "... L"]) -> Float[Tensor, "B H T S"]:
        """Scores [H, L] or [B, H, T, L] by listed distance, by key."""
        return beside(self.of_groups(scores))

    def of_groups(self, scores: Float[Tensor, "... L"]) -> list[Float[Tensor, "b H t N"]]:
        """The same, group by group."""
        if scores.dim() == 2:
            scores = scores[None, :, None]
        elif self.contiguous:
            return [windows.by_key(scores, self.contiguous)]
        return [self._of_group(scores, index) for index in self.index]

    def _of_group(self, scores: Float[Tensor, "#B H #T L"], index: Tensor | None) -> Float[Tensor, "B H T N"]:
        if index is None:
            return scores
        if index.dim() == 2 and scores.shape[0] == 1 and scores.shape[2] == 1:
            return scores[:, :, 0][..., index]
        index = by_head(index)
        batch, heads, time = max(scores.shape[0], index.shape[0]), scores.shape[1], index.shape[2]
        return scores.expand(batch, -1, time, -1).gather(-1, index.expand(batch, heads, -1, -1))

    @property
    def length(self) -> int:
        """L, where 0 .. L - 1 are the listed distances in any order."""
        return self.listed.shape[0]

    def distances(self) -> list[Int[Tensor, "b h T N"]]:
        """Distance of every key, group by group; 0 for keys of the future."""
        time = self.mask.shape[2]
        return [
            self.listed.expand(1, 1, time, -1) if index is None else self.listed[by_head(index)] for index in self.index
        ]


def by_head(index: Shaped[Tensor, "... T N"]) -> Shaped[Tensor, "B h T N"]:
    """With the axes of streams and heads."""
    if index.dim() == 2:
        return index[None, None]
    return index[:, None] if index.dim() == 3 else index


def beside(parts: list[Tensor]) -> Tensor:
    """Along the last axis, streams and heads expanded; one alone costs nothing."""
    if len(parts) == 1:
        return parts[0]
    batch, heads = max(part.shape[0] for part in parts), max(part.shape[1] for part in parts)
    return torch.cat([part.expand(batch, heads, -1, -1) for part in parts], -1)


def columns_of(pattern: Pattern, groups: list[tuple[Place, int]], call: Call) -> Columns:
    """The columns of groups with these places and so many keys; those of a window alone are shared by the layers."""
    places, counts = zip(*groups, strict=True)
    if any(isinstance(place, At) for place in places):
        return _columns(pattern, places, counts, call.tokens)
    key = "columns", pattern, counts, type(places[0])
    if key not in call.made:
        call.made[key] = _columns(pattern, places, counts, call.tokens)
    columns: Columns = call.made[key]
    return columns


def _columns(pattern: Pattern, places: tuple[Place, ...], counts: tuple[int, ...], tokens: Tokens) -> Columns:
    p, time = tokens.p, tokens.p.shape[1]
    if len(places) == 1 and isinstance(places[0], Ring) and time == 1:
        age = places[0].age
        return Columns(window_mask(pattern, age[None], p, counts[0] <= pattern.dense), age, (None,), 0)
    alone, edge = len(places) == 1 and isinstance(places[0], Rows), pattern.horizon + 1
    elsewhere = [edge if place.farthest is None else place.farthest for place in places if isinstance(place, At)]
    length = max(pattern.horizon, *elsewhere) + 1 if elsewhere else min(pattern.horizon + 1, *counts)
    masks, index = [], []
    for place, count in zip(places, counts, strict=True):
        if isinstance(place, At):
            mask = additive(seen_at(pattern, place, p))
            masks.append(mask + place.shift if place.shift else mask)
            distance = place.distance
        else:
            distance = window_distance(place, time, count, p.device)
            masks.append(window_mask(pattern, distance, p))
        index.append(length - 1 - distance.clamp(0, length - 1))
    listed = windows.descending(length, p.device)
    return Columns(beside(masks), listed, tuple(index), counts[0] if alone else 0)


def window_distance(place: Rows | Ring, time: int, count: int, device: torch.device) -> Int[Tensor, "T N"]:
    """Tokens from every query back to every row; negative for the future."""
    if isinstance(place, Rows):
        return windows.distances(time, count, device)
    return place.age - windows.descending(time, device)[:, None]


def by_distance(
    values: Float[Tensor, "B H T S"], visible: Bool[Tensor, "b h t S"], window: Heads, length: int
) -> Float[Tensor, "B T H L"]:
    """Values of the window's rows, the last columns, at distances 0 .. length - 1; 0 where no row is visible."""
    place, count, time = window.place, window.k.shape[-2], values.shape[2]
    assert not isinstance(place, At)
    values, visible = values[..., -count:], visible[..., -count:]
    back = torch.arange(length, device=values.device) + windows.descending(time, values.device)[:, None]
    row = count - 1 - back if isinstance(place, Rows) else (place.newest - back) % count
    index = row.clamp(min=0).expand(*values.shape[:2], -1, -1)
    return values.masked_fill(~visible, 0.0).gather(-1, index).masked_fill(row < 0, 0.0).transpose(1, 2)


def seen_at(pattern: Pattern, place: At, p: Int[Tensor, "B T"]) -> Bool[Tensor, "B h T N"]:
    """Visibility of rows that stand elsewhere; of sinks only where the window of the pattern does not reach."""
    seen = by_head(place.visible)
    return seen & pattern.outside(place.distance, p) if place.outside else seen


def allowed_at(pattern: Pattern, place: At, p: Int[Tensor, "B T"]) -> At:
    """The place without the distances that leave the token's own episode or that the pattern does not allow."""
    distance, reaches = by_head(place.distance), pattern.heads
    if len(reaches) == 1:
        allowed = reaches[0].allowed(distance)
    else:
        each = distance.expand(-1, len(reaches), -1, -1).unbind(1)
        allowed = torch.stack([reach.allowed(row) for reach, row in zip(reaches, each, strict=True)], 1)
    allowed = allowed & pattern.by_rule(distance, p) if pattern.ruled else allowed
    limit = torch.minimum(pattern.limits(p), p[:, None])
    return replace(place, visible=by_head(place.visible) & allowed & (distance <= limit[..., None]))


def window_mask(
    pattern: Pattern, distance: Int[Tensor, "T N"], p: Int[Tensor, "B T"], everywhere: bool = False
) -> Float[Tensor, "B h T N"]:
    """0 for keys of the token's own episode at a distance that the pattern allows, minus infinity elsewhere.

    Args:
        everywhere: whether the pattern is known to allow all of the distances.
    """
    limit = torch.minimum(pattern.limits(p), p[:, None]) if pattern.anchored else p[:, None]
    seen = distance <= limit[..., None]
    seen = seen if everywhere else seen & pattern.allowed(distance)
    return additive(seen & pattern.by_rule(distance[None, None], p) if pattern.ruled else seen)


def additive(visible: Bool[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """0 where visible, minus infinity elsewhere."""
    return torch.where(visible, 0.0, -math.inf)


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


def listed_tables(plan: Plan, q: Float[Tensor, "B H T K"], columns: Columns, call: Call) -> dict[str, Tensor]:
    """``TABLES`` of the listed distances."""
    if not plan.scores_distances:
        return {}
    places = {name: f"{call.place}.{name}" for name in TABLES}
    tables = {name: call.tables[place] for name, place in places.items() if place in call.tables}
    if tables:
        return {name: table.index_select(0, columns.listed) for name, table in tables.items()}
    return tables_of(plan, columns.listed, q)


def scores_by_distance(
    plan: Plan, q: Float[Tensor, "B H T K"], listed: dict[str, Tensor], columns: Columns, call: Call
) -> Float[Tensor, ...] | None:
    """Scores by listed distance, [B, H, T, L] or [H, L], or None when there are none."""
    scores = plan.position.scores(q, listed["position"]) if "position" in listed else None
    if "parts" in listed:
        parts = listed["parts"].T
        scores = parts if scores is None else scores + (parts[:, None] if scores.dim() == 4 else parts)
    if scores is not None and scores.dtype != q.dtype:
        scores = scores.to(q.dtype)
    own = [part.of_queries(q, columns.listed, call.tokens) for part in plan.on_queries]
    if not plan.score.plain and (score := plan.score.by_distance(q, columns.listed)) is not None:
        own.append(score)
    if not own:
        return scores
    shared = [] if scores is None else [scores[:, None] if scores.dim() == 2 else scores]
    return functools.reduce(Tensor.add, [*own, *shared])
