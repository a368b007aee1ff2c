"""Who may look at whom, as a function of the distance, and of the query's position in its episode where a rule asks.

Below the reaches of heads and the pattern of a layer stand the keys of one call side by side: how far each lies from
every query, and whether it is seen.

Axes: B batch, H heads (1 where heads agree), T tokens, N keys of a group, S keys of all groups, L listed distances.
"""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import NoOptions, Spec, Traits
from rltransformers.functional import windows
from rltransformers.functional.call import Call
from rltransformers.functional.keys import At, Past, Place, Ring, Rows
from rltransformers.mixers.interface import Dims

SMALLEST_BLOCK = 32  # tokens; smaller blocks cost more in small products than they save in keys outside the window


class Constant(nn.Module):
    """Whole numbers that no step makes anew; the layer that reads them takes them to its device."""

    values: Tensor

    def __init__(self, values: Sequence[object]) -> None:
        super().__init__()
        self.register_buffer("values", torch.tensor(values), persistent=False)


class Rule(ABC):
    """Which keys of a window count, where that depends on more than the distance; a frozen record, equal if it does.

    A query at position i of its episode meets the key at i - d. What a rule says about keys of other episodes (d > i)
    or of the future (d < 0) does not matter. Numbers that no step should make anew are fields of type ``Constant``.
    """

    @abstractmethod
    def allowed(self, i: Int[Tensor, "B 1 T 1"], distance: Int[Tensor, "#B #H T N"]) -> Bool[Tensor, "#B #H T N"]:
        """Allowed keys, for all heads alike or with one answer per head."""


@dataclass(frozen=True)
class Reach:
    """Allowed distances of one head: whole steps, every ``dilation``-th token, plus the first tokens of the episode.

    Attributes:
        window: steps, the token's own included.
        dilation: allowed distances are multiples of it, in tokens.
        sinks: tokens at the start of the episode that stay visible for ever.
        tokens_per_step: tokens of one environment step.
        rule: leaves out further keys of the window, by the position of the query; None leaves out none.
    """

    window: int
    dilation: int = 1
    sinks: int = 0
    tokens_per_step: int = 1
    rule: Rule | None = None

    @property
    def horizon(self) -> int:
        """Largest allowed distance in tokens, sinks aside."""
        return self.window * self.tokens_per_step - 1

    def allowed(self, distance: Int[Tensor, "*n"]) -> Bool[Tensor, "*n"]:
        """Allowed distances as far as they do not depend on the token; negative ones never are."""
        inside = (distance >= 0) & (distance <= self.horizon)
        return inside if self.dilation == 1 else inside & (distance % self.dilation == 0)

    def limit(self, p: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
        """Largest distance inside the window: steps are whole, so later tokens of a step reach further."""
        return (self.window - 1) * self.tokens_per_step + p % self.tokens_per_step

    def sees(self, i: Int[Tensor, "B 1 T 1"], distance: Int[Tensor, "#B #H T N"]) -> Bool[Tensor, "#B #H T N"]:
        """Keys that the query at position i sees through the window."""
        seen = (distance <= self.limit(i)) & self.allowed(distance)
        return seen if self.rule is None else seen & self.rule.allowed(i, distance)

    def within(self, window: int) -> "Reach":
        """The keys of the newest ``window`` steps among its own; sinks stay."""
        if window >= self.window:
            return self
        if type(self) is Reach:
            return replace(self, window=window)
        return Reach(window, sinks=self.sinks, tokens_per_step=self.tokens_per_step, rule=AnyOf((self,)))

    @property
    def anchored(self) -> bool:
        """Whether the edge depends on the place of the token; otherwise it is always the horizon."""
        return self.tokens_per_step > 1


@dataclass(frozen=True)
class AnyOf(Rule):
    """Keys that at least one of several reaches shows."""

    reaches: tuple[Reach, ...]

    def allowed(self, i: Int[Tensor, "B 1 T 1"], distance: Int[Tensor, "b h T N"]) -> Bool[Tensor, "c g T N"]:
        """The OR of masks."""
        return functools.reduce(torch.logical_or, (reach.sees(i, distance) for reach in self.reaches))


@dataclass(frozen=True)
class Pattern:
    """The reach of every head, or one reach that all heads share.

    Attributes:
        horizon: largest distance of any head, in tokens.
        sinks: sink tokens to keep.
        anchored: True if the window edge of any head depends on the place of the token.
        ruled: True if what any head sees depends on more than distances and the window's edge.
        dense: number of distances 0 .. dense - 1 that every head allows.
    """

    heads: tuple[Reach, ...]
    horizon: int = field(init=False, compare=False)
    sinks: int = field(init=False, compare=False)
    anchored: bool = field(init=False, compare=False)
    ruled: bool = field(init=False, compare=False)
    dense: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Settle what follows from the heads."""
        horizons, ruled = [reach.horizon for reach in self.heads], any(reach.rule is not None for reach in self.heads)
        gapless = not ruled and all(reach.dilation == 1 for reach in self.heads)
        values = {
            "horizon": max(horizons),
            "sinks": max(reach.sinks for reach in self.heads),
            "anchored": any(reach.anchored for reach in self.heads),
            "ruled": ruled,
            "dense": min(horizons) + 1 if gapless else 0,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def allowed(self, distance: Int[Tensor, "T N"]) -> Bool[Tensor, "h T N"]:
        """Allowed distances per head, as far as they do not depend on the token; negative ones never are."""
        if len(self.heads) == 1:
            return self.heads[0].allowed(distance)[None]
        return torch.stack([reach.allowed(distance) for reach in self.heads])

    def limits(self, p: Int[Tensor, "B T"]) -> Int[Tensor, "B H T"]:
        """Window edge per head and token."""
        if len(self.heads) == 1:
            return self.heads[0].limit(p)[:, None]
        return torch.stack([reach.limit(p) for reach in self.heads], 1)

    def by_rule(self, distance: Int[Tensor, "#B #H T N"], p: Int[Tensor, "B T"]) -> Bool[Tensor, "b h T N"]:
        """Which keys the rules of the heads let through."""
        i, found = p[:, None, :, None], []
        answers: dict[Rule, Tensor] = {}
        for head, reach in enumerate(self.heads):
            own = distance[:, head : head + 1] if distance.shape[1] > 1 and len(self.heads) > 1 else distance
            if reach.rule is None:
                let = own >= 0
            elif own is distance and reach.rule in answers:
                let = answers[reach.rule]
            else:
                let = answers[reach.rule] = reach.rule.allowed(i, own)
            found.append(let[:, head : head + 1] if let.shape[1] > 1 and len(self.heads) > 1 else let)
        return found[0] if len(found) == 1 else torch.cat([let.expand(p.shape[0], -1, -1, -1) for let in found], 1)

    def outside(self, distance: Int[Tensor, "B T n"], p: Int[Tensor, "B T"]) -> Bool[Tensor, "B H T n"]:
        """Which sinks a head has and does not see through its window."""
        sink = torch.arange(distance.shape[2], device=p.device)
        owned = torch.stack([sink < reach.sinks for reach in self.heads])
        beyond = distance[:, None] > self.limits(p)[..., None]
        if self.ruled:
            beyond = beyond | ~self.by_rule(distance[:, None], p)
        return beyond & owned[:, None]


def constants_of(record: object) -> Iterator[Constant]:
    """Constants among the fields of a pattern, and of the reaches and rules in it."""
    for value in vars(record).values():
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, Constant):
                yield each
            elif isinstance(each, Reach | Rule):
                yield from constants_of(each)


@dataclass(frozen=True)
class Columns:
    """All keys of one call side by side: distances and visibility.

    Whatever depends on the distance alone is computed once per listed distance and spread over the keys.

    Attributes:
        mask: 0, or the shift of its place, where a key is seen, minus infinity elsewhere.
        listed: the distances for which scores are computed, 0 .. L - 1 in any order.
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
        return beside(self.by_group(scores))

    def by_group(self, scores: Float[Tensor, "... L"]) -> list[Float[Tensor, "b H t N"]]:
        """The same, group by group."""
        if scores.dim() == 2:
            scores = scores[None, :, None]
        elif self.contiguous:
            return [windows.by_key(scores, self.contiguous)]
        groups = []
        for index in self.index:
            if index is None:
                groups.append(scores)
            elif index.dim() == 2 and scores.shape[0] == 1 and scores.shape[2] == 1:
                groups.append(scores[:, :, 0][..., index])
            else:
                index = by_head(index)
                batch, heads, time = max(scores.shape[0], index.shape[0]), scores.shape[1], index.shape[2]
                own = scores.expand(batch, -1, time, -1)
                groups.append(own.gather(-1, index.expand(batch, heads, -1, -1)))
        return groups

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
    elsewhere = [place for place in places if isinstance(place, At)]
    key = "columns", pattern, counts, type(places[0])
    if not elsewhere and key in call.made:
        shared: Columns = call.made[key]
        return shared
    p, time, alone = call.tokens.p, call.tokens.p.shape[1], len(places) == 1
    if alone and isinstance(places[0], Ring) and time == 1:
        age = places[0].age
        columns = Columns(window_mask(pattern, age[None], p, counts[0] <= pattern.dense), age, (None,), 0)
    else:
        edge = pattern.horizon + 1
        farthest = [edge if place.farthest is None else place.farthest for place in elsewhere]
        length = max(pattern.horizon, *farthest) + 1 if elsewhere else min(edge, *counts)
        masks, index = [], []
        for place, count in zip(places, counts, strict=True):
            if isinstance(place, At):
                visible, distance = by_head(place.visible), place.distance
                if place.outside:  # as sinks: seen where the window of the pattern does not reach
                    visible = visible & pattern.outside(distance, p)
                masks.append(torch.where(visible, place.shift, -math.inf))
            else:
                distance = window_distance(place, time, count, p.device)
                masks.append(window_mask(pattern, distance, p))
            index.append(length - 1 - distance.clamp(0, length - 1))
        contiguous = counts[0] if alone and isinstance(places[0], Rows) else 0
        columns = Columns(beside(masks), windows.descending(length, p.device), tuple(index), contiguous)
    if not elsewhere:
        call.made[key] = columns
    return columns


def window_distance(place: Rows | Ring, time: int, count: int, device: torch.device) -> Int[Tensor, "T N"]:
    """Tokens from every query back to every row; negative for the future."""
    age = windows.descending(count, device) if isinstance(place, Rows) else place.age
    return age - windows.descending(time, device)[:, None]


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
    seen = seen & pattern.by_rule(distance[None, None], p) if pattern.ruled else seen
    return torch.where(seen, 0.0, -math.inf)


def block_size(horizon: int) -> int:
    """Tokens of a block: a quarter of the window, so that few keys stand outside it."""
    return max(-(-horizon // 4), SMALLEST_BLOCK)


def block_of(past: Past, horizon: int) -> int:
    """Tokens of a block, 0 for a call that is not cut: one that is short, or has further keys for all tokens."""
    *others, window = past
    if not isinstance(window.place, Rows) or not all(group.per_token for group in others):
        return 0
    block = block_size(horizon)
    return block if horizon + block < window.rows.shape[1] else 0


def in_turn(name: str, values: Sequence[int], heads: int) -> tuple[int, ...]:
    """One of ``values`` per head, taken in turn; ConfigError for no value, or for more than there are heads."""
    if not values:
        raise ConfigError(f"{name} is empty; give at least one number")
    if len(values) > heads:
        raise ConfigError(
            f"{name} has {len(values)} numbers for heads to take in turn, but heads is {heads}; "
            f"set heads to at least {len(values)} or give fewer numbers"
        )
    return tuple(values[head % len(values)] for head in range(heads))


def check_memory(what: str, back: int, memory: int, instead: str = "") -> None:
    """Raise ConfigError for what looks back more steps than the memory keeps; ``instead`` says another way out."""
    if back > memory:
        raise ConfigError(
            f"{what} looks {back} steps back but memory keeps {memory}; set memory to at least {back}{instead}"
        )


def check_window(name: str, window: int, memory: int) -> None:
    """The same for a window of steps, the token's own included."""
    check_memory(f"{name} window {window}", window - 1, memory, f" or window to at most {memory + 1}")


def build_full(dims: Dims, options: NoOptions) -> Reach:
    """Build the reach that the memory bounds."""
    return Reach(dims.memory + 1, tokens_per_step=dims.tokens_per_step)


FULL = Spec(
    "A0", "full", "pattern", "Vaswani et al. 2017, arXiv 1706.03762",
    "Every token sees all of its episode that the memory holds.", build_full,
    traits=Traits(horizon="memory"), formula="0 <= d <= memory",
)  # fmt: skip
