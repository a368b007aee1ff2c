"""Attention to slots, which stand for completed blocks of tokens, and to the tokens behind these blocks.

Axes: B batch, H heads, G key-value heads, T tokens, S key rows, N blocks, b tokens of a block, c slots of a block, K
key width, V value width, X one of both, E = G (K + V), C tokens of a chunk.
Block m covers the positions m b ... m b + b - 1 of an episode. Once its last token has come, the block is seen through
its slots and no longer through its tokens, by that token, too; one softmax is taken over slots and tokens.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.attention import layer, reports
from rltransformers.attention.layer import Attention
from rltransformers.attention.plan import Plan
from rltransformers.attention.reach import Pattern, Reach
from rltransformers.attention.roles import joined_heads
from rltransformers.core.errors import ConfigError
from rltransformers.functional import windows
from rltransformers.functional.call import EVERY, Call, chosen
from rltransformers.functional.keys import At, Group, Past, Rows, in_order
from rltransformers.mixers.interface import Dims, Mixed


@dataclass(frozen=True)
class Tail(Reach):
    """The tokens of the current block up to the query, as long as the block is not complete."""

    block: int = 1

    @property
    def anchored(self) -> bool:
        """The edge is the beginning of the block."""
        return True

    def limit(self, p: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
        """Distance of the first token of the block; -1 for the token that completes it."""
        return (p + 1) % self.block - 1


class Compression(nn.Module, ABC):
    """From the keys, or values, of a block to those of its slots.

    Attributes:
        slots: c.
        span: tokens between the places of two slots that follow each other; 0 where all stand at the end of the block.
    """

    slots: int
    span: int

    @abstractmethod
    def forward(self, k: Float[Tensor, "B N b G K"], v: Float[Tensor, "B N b G V"]) -> tuple[Tensor, Tensor]:
        """Keys [B, N, c, G, K] and values [B, N, c, G, V]."""


class BlockConvolution(nn.Module):
    """``sum_j W[g, j] x[j, g] + b[g]`` over the tokens j of a block; starts as the convolutions of PyTorch do.

    Args:
        groups: key-value heads g with weights of their own; 1 for the same weights in all of them.
    """

    def __init__(self, groups: int, block: int, width: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(block * width)
        self.weight = nn.Parameter(torch.empty(groups, block, width, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(groups, width).uniform_(-bound, bound))

    def forward(self, x: Float[Tensor, "B N b G X"]) -> Float[Tensor, "B N G X"]:
        """One vector per block and head."""
        return torch.einsum("znjgx,gjyx->zngy", x, self.weight) + self.bias


class SlotAttention(Attention):
    """Softmax over the slots of the newest ``blocks`` completed blocks and the tokens behind them.

    A slot lies where the last token lies that it stands for; scores by distance, rotations and spans use that place.

    Args:
        mass: added to the scores of slots.
    """

    def __init__(self, dims: Dims, plan: Plan, compression: Compression, block: int, blocks: int, mass: float) -> None:
        super().__init__(dims, replace(plan, pattern=Pattern((Tail(max(1, block - 1), block=block),))))
        self.compression, self.block, self.blocks, self.mass = compression, block, blocks, mass
        self.horizon = horizon_of(block, blocks)

    def forward(
        self,
        h: Float[Tensor, "B T D"],
        query: Float[Tensor, "B T Q"],
        past: Past,
        state: dict[str, Tensor],
        call: Call,
        below: Tensor | None,
    ) -> Mixed:
        """The wanted tokens; long calls are cut into chunks with slots of their own, so work grows linearly with T."""
        if call.probe.listens:
            reports.of_inputs(self, h, past[-1], call)
        (batch, time), rows = query.shape[:2], in_order(past[-1])
        size = layer.block_of(self.horizon)
        if time <= size:
            early = EVERY if call.probe.listens or self.plan.ordered else call.wanted
            seen = self.slots_and_tail(rows, call, time)
            mixed, logits = self.attend(h, chosen(query, early), seen, call, below, early)
        else:
            early, folded = EVERY, call.cut(size)
            seen = self.slots_and_tail(rows, call, size)
            mixed, logits = self.attend(windows.fold(h, size), windows.fold(query, size), seen, folded, below, early)
        mixed = joined_heads(mixed)
        if time > size:
            mixed = windows.unfold_tokens(mixed, time, batch)
        mixed = mixed if early is call.wanted else chosen(mixed, call.wanted)
        return Mixed(self.combined(mixed), state, logits)

    def slots_and_tail(self, rows: Float[Tensor, "B S E"], call: Call, size: int) -> Past:
        """Visibility in chunks of ``size`` tokens; chunks are further batch rows."""
        time = call.tokens.p.shape[1]
        count = -(-time // size)
        p = F.pad(call.tokens.p, (0, count * size - time))
        spare = -(-size // self.block) if count > 1 else 0
        ends, before = ends_of_blocks(p, call.tokens.before, self.block, self.blocks, spare)
        memory = rows.shape[1] - time
        slots = self.compressed(rows, memory + ends)
        if count > 1:
            order = before[:, ::size, None] + torch.arange(self.blocks + spare, device=p.device)
            slots = windows.take_rows(slots, order.flatten(1)).unflatten(1, order.shape[1:]).flatten(0, 1)
            first = size * torch.arange(count, device=p.device)[:, None]
            ends = (ends.gather(1, order.flatten(1)).unflatten(1, order.shape[1:]) - first).flatten(0, 1)
        place = self.place(p.unflatten(1, (count, size)).flatten(0, 1), ends)
        tail = max(0, self.block - 2)
        if memory > tail:
            rows = rows[:, memory - tail :]
        elif count > 1 and memory < tail:
            rows = F.pad(rows, (0, 0, tail - memory, 0))
        rows = windows.fold_keys(rows, tail, size) if count > 1 else rows
        return Group(slots.flatten(1, 2), place), Group(rows, Rows())

    def compressed(self, rows: Float[Tensor, "B S E"], ends: Int[Tensor, "B N"]) -> Float[Tensor, "B N c E"]:
        """The slots of blocks whose last tokens are given; of blocks that are not in the rows, anything."""
        index = ends[..., None] - windows.descending(self.block, rows.device)
        blocks = windows.take_rows(rows, index.clamp(max=rows.shape[1] - 1).flatten(1)).unflatten(1, index.shape[1:])
        groups = self.dims.kv_heads
        k, v = blocks.split_with_sizes([groups * self.dims.head_dim, groups * self.dims.value_dim], -1)
        made = self.compression(k.unflatten(-1, (groups, -1)), v.unflatten(-1, (groups, -1)))
        return torch.cat([part.flatten(-2) for part in made], -1)

    def place(self, p: Int[Tensor, "B C"], ends: Int[Tensor, "B N"]) -> At:
        """Distances of slots from the tokens of a chunk, and which of them are the newest of the same episode."""
        compression, size = self.compression, p.shape[1]
        distance = torch.arange(size, device=p.device)[:, None] - ends[:, None]
        edge = torch.minimum(p, (p + 1) % self.block + self.block * (self.blocks - 1))
        visible = (distance >= 0) & (distance <= edge[..., None])
        farthest = self.block * self.blocks - 1 + compression.span * (compression.slots - 1)
        if compression.slots > 1:
            older = compression.span * windows.descending(compression.slots, p.device)
            distance = (distance[..., None] + older).flatten(2)
            visible = visible.repeat_interleave(compression.slots, 2)
        return At(distance, visible, farthest, shift=self.mass)

    def filled(self, p: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
        """Tokens of the window that exist."""
        return p.clamp(max=self.horizon) + 1


def ends_of_blocks(
    p: Int[Tensor, "B T"], before: Int[Tensor, " B"], block: int, blocks: int, spare: int
) -> tuple[Int[Tensor, "B N"], Int[Tensor, "B T"]]:
    """Last tokens of completed blocks, oldest first, and the number of them that the call completes before a token.

    They are counted from the first token of the call: -1 is the token in front of it. First come the last ``blocks``
    blocks of the episode that the call continues, then those that the call completes; the rest, at least ``spare``
    places, lies behind the call.
    """
    time = p.shape[1]
    place = torch.arange(time, device=p.device)
    old = -1 - (before[:, None] + 1) % block - block * windows.descending(blocks, p.device)
    complete = (p + 1) % block == 0
    done = complete.cumsum(1)
    most = -(-time // block)  # a block of an episode takes as many tokens as it has, but the first one began earlier
    index = torch.where(complete, done - 1, most)
    new = p.new_full((p.shape[0], most + 1), time).scatter(1, index, place.expand_as(p))
    return torch.cat([old, F.pad(new[:, :most], (0, spare), value=time)], 1), done - complete.long()


def horizon_of(block: int, blocks: int) -> int:
    """Tokens back to the first one of ``blocks`` blocks, where the block behind them is complete but for a token."""
    return (blocks + 1) * block - 2


def visible_tokens(dims: Dims) -> int:
    """Tokens of the past that the last token of a step sees."""
    return (dims.memory + 1) * dims.tokens_per_step - 1


def block_count(name: str, dims: Dims, block: int, blocks: int | None) -> int:
    """Completed blocks that stay readable: as many as the memory holds, where the options do not say how many.

    Raises:
        ConfigError: the memory holds fewer.
    """
    visible = visible_tokens(dims)
    if blocks is None:
        blocks = max(1, (visible + 2) // block - 1)
    horizon = horizon_of(block, blocks)
    if visible < horizon:
        steps = math.ceil((horizon + 1) / dims.tokens_per_step) - 1
        raise ConfigError(
            f"{name} with {blocks} blocks of {block} tokens looks {horizon} tokens back, the memory holds {visible}; "
            f"raise memory to {steps} steps or choose fewer or smaller blocks"
        )
    return blocks
