"""Learned absolute encoding of the episode position: a finite table."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rltransformers.core.spec import Size, Spec
from rltransformers.mixers.interface import Dims
from rltransformers.positions.interface import Acts, Position


@dataclass(frozen=True)
class LearnedOptions:
    """Episode positions in the table."""

    max_len: Size = 1024


@dataclass(frozen=True)
class TimestepOptions:
    """Environment steps in the table."""

    max_len: Size = 4096


class LearnedTable(Position):
    """x + E[index], where the index is the episode position or, ``by_timestep``, the environment step."""

    acts = Acts.INPUT
    by_timestep = False

    def __init__(self, dims: Dims, options: LearnedOptions | TimestepOptions) -> None:
        super().__init__()
        self.table = nn.Embedding(options.max_len, dims.width)
        nn.init.normal_(self.table.weight, std=0.02)
        self.places, self.timesteps = (None, options.max_len) if self.by_timestep else (options.max_len, None)

    def embed(self, x: Tensor, p: Tensor, timestep: Tensor) -> Tensor:
        return x + torch.embedding(self.table.weight, timestep if self.by_timestep else p)


class TimestepTable(LearnedTable):
    """The same for all tokens of an environment step."""

    by_timestep = True


LEARNED = Spec(
    id="P2", name="learned", axis="position", paper="Gehring et al. 2017, arXiv 1705.03122",
    summary="Adds a learned vector per episode position to the input; episodes longer than max_len are refused.",
    build=LearnedTable, options=LearnedOptions, example={"position": {"name": "learned", "max_len": 64}},
    acts_at="on the input",
    formula="x_t + E[p_t], E learned [max_len, D]",
)  # fmt: skip
TIMESTEP = Spec(
    id="P17", name="timestep", axis="position", paper="Chen et al. 2021, arXiv 2106.01345, section 3",
    summary="Adds a learned vector per environment step, shared by all tokens of the step.",
    build=TimestepTable, options=TimestepOptions, example={"position": {"name": "timestep", "max_len": 64}},
    acts_at="on the input",
    formula="x_t + E[n_t], n_t the environment step, E learned [max_len, D]",
)  # fmt: skip
