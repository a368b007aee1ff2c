"""Parts of several patterns: blocks anchored to the episode, random blocks, unions of reaches.

Axes: B batch, H heads (1 where heads agree), T tokens, N keys. Sizes of blocks are in tokens here; positions count from
the start of the episode, so neither a reset nor the way a stream is cut into calls moves a block.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from rltransformers.attention.reach import AnyOf, Reach, Rule, check_memory
from rltransformers.functional.draws import layer_key, mix
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Blocks(Reach):
    """Down to the beginning of the query's own block of ``size`` tokens, and ``before`` tokens further."""

    size: int = 1
    before: int = 0

    @property
    def anchored(self) -> bool:
        return True

    def limit(self, p: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
        """Tokens since the beginning of the block, and those in front."""
        return p % self.size + self.before


def blocks(name: str, dims: Dims, size: int, before: int) -> Blocks:
    """Blocks of ``size`` steps with ``before`` steps in front; ConfigError if the memory is shorter than both."""
    check_memory(f"pattern {name!r}", size + before - 1, dims.memory)
    per = dims.tokens_per_step
    return Blocks(size + before, tokens_per_step=per, size=size * per, before=before * per)


def union(reaches: tuple[Reach, ...], sinks: int = 0) -> Reach:
    """One reach with all keys of several, in one softmax; ``sinks`` are the fewest first tokens that stay visible."""
    if len(reaches) == 1 and not sinks:
        return reaches[0]
    window = max(reach.window for reach in reaches)
    most = max(sinks, *(reach.sinks for reach in reaches))
    return Reach(window, sinks=most, tokens_per_step=reaches[0].tokens_per_step, rule=AnyOf(reaches))


@dataclass(frozen=True)
class RandomBlocks(Rule):
    """The query's own block, and for every block and head a few of the earlier blocks, drawn without replacement.

    The draws are whole-number arithmetic on (seed, layer, head, number of the block): the same on every device, in
    every call, and after every reset.

    Attributes:
        size: tokens of a block.
        count: blocks that are drawn.
        farthest: blocks from the query's own to the oldest that may be drawn.
    """

    size: int
    count: int
    farthest: int
    seed: int
    layer: int
    heads: int

    def allowed(self, i: Int[Tensor, "B 1 T 1"], distance: Int[Tensor, "b h T N"]) -> Bool[Tensor, "B g T N"]:
        block = i // self.size
        back = block - (i - distance) // self.size
        seen = back == 0
        for drawn in self.drawn(block).unbind(-1):
            seen = seen | (back == drawn[..., None])
        return seen

    def drawn(self, block: Int[Tensor, "B 1 T 1"]) -> Int[Tensor, "B H T n"]:
        """How many blocks back the drawn ones lie; 0 where there are not so many earlier ones.

        Floyd's way to draw r of n: for k = n - r ... n - 1 take a number from 0 ... k, or k where it was taken before.
        """
        heads = torch.arange(self.heads, device=block.device)[:, None, None]
        state = mix(mix(block, layer_key(self.seed, self.layer)), heads)
        draws = torch.arange(self.count, device=block.device)
        last = block.clamp(max=self.farthest) - self.count + draws
        guesses = mix(state, draws) % (last + 1).clamp(min=1)
        found = torch.zeros_like(state)  # runtimes disagree about whether any of no numbers is true
        for k, guess in zip(last.split(1, -1), guesses.split(1, -1), strict=True):
            taken = (found == guess + 1).any(-1, keepdim=True)
            found = torch.cat([found, torch.where(k < 0, 0, torch.where(taken, k, guess) + 1)], -1)
        return found


def random_blocks(name: str, dims: Dims, size: int, count: int, seed: int) -> Reach:
    """Own and drawn blocks of ``size`` steps, as far back as the memory holds whole ones; ConfigError without one."""
    farthest = (dims.memory + 1) // size - 1
    if farthest < 1:
        check_memory(f"pattern {name!r}", 2 * size - 1, dims.memory)
    rule = RandomBlocks(size * dims.tokens_per_step, count, farthest, seed, dims.layer, dims.heads)
    return Reach((farthest + 1) * size, tokens_per_step=dims.tokens_per_step, rule=rule)
