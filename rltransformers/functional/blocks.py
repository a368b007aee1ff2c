"""Blocks of an episode: borders stand at multiples of b from its start, wherever a call begins.

Axes: B batch, T tokens, S key rows, n blocks of a call, b tokens of a block.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from rltransformers.functional.windows import FEW_TOKENS


@dataclass(frozen=True)
class Blocks:
    """The blocks that the tokens of a call lie in, in order, padded to the same count n in every batch row.

    Attributes:
        start: row of ``[memory ; tokens]`` with the first token of a block.
        number: completed blocks before it in its episode.
        of_token, place: block of every token, and its place 0 ... b - 1 inside.
    """

    start: Int[Tensor, "B n"]
    number: Int[Tensor, "B n"]
    of_token: Int[Tensor, "B T"]
    place: Int[Tensor, "B T"]


def episode_blocks(p: Int[Tensor, "B T"], memory: int, block: int) -> Blocks:
    """Cut the tokens into blocks of ``block`` positions, anchored to p; a new episode opens a new block."""
    place = p % block
    opens = place == 0
    opens[:, 0] = True
    of_token = opens.cumsum(1) - 1
    # A few tokens need no look at the data: acting does not wait for the device, and can be traced.
    count = int(of_token[:, -1].max()) + 1 if p.shape[1] > FEW_TOKENS else p.shape[1]
    rows = memory + torch.arange(p.shape[1], device=p.device) - place
    # All tokens of a block write the same numbers.
    start = p.new_zeros(p.shape[0], count).scatter(1, of_token, rows)
    number = p.new_zeros(p.shape[0], count).scatter(1, of_token, p // block)
    return Blocks(start, number, of_token, place)
