"""Learned absolute encoding of the episode position: a finite table."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rltransformers.core.spec import Size, Spec
from rltransformers.positions.interface import Acts, Position, Sizes, check_table


class LearnedTable(Position):
    """x + E[index], where the index is the episode position or the environment step."""

    acts = Acts.INPUT

    def __init__(self, width: int, max_len: int, by_timestep: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(max_len, width)
        nn.init.normal_(self.table.weight, std=0.02)
        self.by_timestep = by_timestep
        self.places, self.timesteps = (None, max_len) if by_timestep else (max_len, None)

    def embed(self, x: Tensor, p: Tensor, timestep: Tensor) -> Tensor:
        """Input [B, T, D] plus the table rows."""
        return x + torch.embedding(self.table.weight, timestep if self.by_timestep else p)

    def check_places(self, p: Tensor, timestep: Tensor) -> None:
        """Raise DataError unless the table is as long as the episode."""
        index = timestep if self.by_timestep else p
        what = "environment step" if self.by_timestep else "episode position"
        check_table(what, index, self.table.num_embeddings)


@dataclass(frozen=True)
class LearnedOptions:
    """Episode positions in the table."""

    max_len: Size = 1024


@dataclass(frozen=True)
class TimestepOptions:
    """Environment steps in the table."""

    max_len: Size = 4096


def build_learned(sizes: Sizes, options: LearnedOptions) -> Position:
    """P2."""
    return LearnedTable(sizes.width, options.max_len, by_timestep=False)


def build_timestep(sizes: Sizes, options: TimestepOptions) -> Position:
    """P17."""
    return LearnedTable(sizes.width, options.max_len, by_timestep=True)


LEARNED = Spec(
    id="P2",
    name="learned",
    axis="position",
    paper="Gehring et al. 2017, arXiv 1705.03122",
    summary="Adds a learned vector per episode position to the input; episodes longer than max_len are refused.",
    build=build_learned,
    options=LearnedOptions,
    example={"position": {"name": "learned", "max_len": 64}},
    acts_at="on the input",
    formula="x_t + E[p_t], E learned [max_len, D]",
)
TIMESTEP = Spec(
    id="P17",
    name="timestep",
    axis="position",
    paper="Chen et al. 2021, arXiv 2106.01345, section 3",
    summary="Adds a learned vector per environment step, shared by all tokens of the step.",
    build=build_timestep,
    options=TimestepOptions,
    example={"position": {"name": "timestep", "max_len": 64}},
    acts_at="on the input",
    formula="x_t + E[n_t], n_t the environment step, E learned [max_len, D]",
)
