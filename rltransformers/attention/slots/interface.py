"""Attention to slots, which stand for completed blocks of tokens, and to the tokens behind these blocks.

Axes: B batch, H heads, G key-value heads, T tokens, S key rows, N blocks, b tokens of a block, c slots of a block, K
key width, V value width, X one of both, E = G (K + V), C tokens of a chunk.
Block m covers the positions m b ... m b + b - 1 of an episode. Once its last token has come, the block is seen through
its slots and no longer through its tokens, by that token, too; one softmax is taken over slots and tokens.
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.attention.layer import Attention
from rltransformers.attention.plan import Plan
from rltransformers.attention.reach import Pattern, Reach, block_size
from rltransformers.core.errors import ConfigError
from rltransformers.functional import windows
from rltransformers.functional.blocks import ends_of_slots, slots_of_chunks
from rltransformers.functional.call import Call
from rltransformers.functional.keys import At, Group, Past, Rows, in_order
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Tail(Reach):
    """The tokens of the current block up to the query, as long as the block is not complete."""

    block: int = 1

    @property
    def anchored(self) -> bool:
        return True

    def limit(self, p: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
        """Distance of the first token of the block; -1 for the token that completes it."""
        return (p + 1) % self.block - 1


class Compression(nn.Module):
    """From the keys and the values of a block to those of its slots.

    Args:
        of_keys, of_values: from [B, N, b, G, X] to [B, N, c, G, X].
        slots: c.
        span: tokens between the places of two slots that follow each other; 0 where all stand at the end of the block.
    """

    def __init__(self, of_keys: nn.Module, of_values: nn.Module, slots: int, span: int) -> None:
        super().__init__()
        self.of_keys, self.of_values, self.slots, self.span = of_keys, of_values, slots, span


class BlockConvolution(nn.Module):
    """``sum_j W[g, j] x[j, g] + b[g]`` over the tokens j of every part of a block; starts as PyTorch's convolutions do.

    Args:
        groups: key-value heads g with weights of their own; 1 for the same weights in all of them.
        slots: parts of a block, of ``span`` tokens each.
    """

    def __init__(self, groups: int, slots: int, span: int, width: int) -> None:
        super().__init__()
        self.slots, self.span = slots, span
        bound = 1 / math.sqrt(span * width)
        self.weight = nn.Parameter(torch.empty(groups, span, width, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(groups, width).uniform_(-bound, bound))

    def forward(self, x: Float[Tensor, "B N b G X"]) -> Float[Tensor, "B N c G X"]:
        """One vector per part and head."""
        parts = x.unflatten(2, (self.slots, self.span)).flatten(1, 2)
        made = torch.einsum("znjgx,gjyx->zngy", parts, self.weight) + self.bias
        return made.unflatten(1, (-1, self.slots))


class Pooled(nn.Module):
    """The mean or the maximum of every part of a block."""

    def __init__(self, slots: int, maximum: bool = False) -> None:
        super().__init__()
        self.slots, self.maximum = slots, maximum

    def forward(self, x: Float[Tensor, "B N b G X"]) -> Float[Tensor, "B N c G X"]:
        """One vector per part and head."""
        parts = x.unflatten(2, (self.slots, -1))
        return parts.amax(3) if self.maximum else parts.mean(3)


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

    def in_blocks(self, past: Past, call: Call) -> tuple[Past, int]:
        """Long calls are cut into chunks with slots of their own, so work grows linearly with T."""
        rows, size, time = in_order(past[-1]), block_size(self.horizon), call.tokens.p.shape[1]
        return self.slots_and_tail(rows, call, min(time, size)), size if time > size else 0

    def slots_and_tail(self, rows: Float[Tensor, "B S E"], call: Call, size: int) -> Past:
        """Visibility in chunks of ``size`` tokens; chunks are further batch rows."""
        time = call.tokens.p.shape[1]
        count = -(-time // size)
        p = F.pad(call.tokens.p, (0, count * size - time))
        spare = -(-size // self.block) if count > 1 else 0
        ends, done = ends_of_slots(p, call.tokens.before, self.block, self.block, self.blocks)
        ends = F.pad(ends, (0, spare), value=p.shape[1])
        memory = rows.shape[1] - time
        slots = self.compressed(rows, memory + ends)
        if count > 1:
            slots, ends = slots_of_chunks(slots, ends, done, size, self.blocks + spare)
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
        k, v = self.score.keys_of(windows.rows_up_to(rows, ends, self.block))
        made = self.compression.of_keys(k), self.compression.of_values(v)
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
        return p.clamp(max=self.horizon) + 1


def horizon_of(block: int, blocks: int) -> int:
    """Tokens back to the first one of ``blocks`` blocks, where the block behind them is complete but for a token."""
    return (blocks + 1) * block - 2


def block_count(name: str, dims: Dims, block: int, blocks: int | None) -> int:
    """Completed blocks that stay readable, as many as the memory holds where None; ConfigError if it holds fewer."""
    visible = dims.tokens_in_view - 1
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
