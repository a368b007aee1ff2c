"""Conditional attention: blocks along the diagonal, scaled and shifted by the task (Pilault et al. 2021).

Axes: B batch, T tokens, L distances, J blocks, n tokens of a block, Z numbers of a task.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.attention.roles import Part
from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Feature, Size, Spec, Traits
from rltransformers.functional.blocks import inside_block
from rltransformers.functional.call import Tokens
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Options:
    """Options of the conditional blocks.

    Attributes:
        tasks: number of tasks.
        task: of all episodes, counted from 0; None reads it: ``Backbone.forward(..., task=...)``, in agents the key
            "task" of the observation.
        size: width Z of the embedding of a task.
        blocks: blocks J with weights of their own; later blocks use them again.
        block: tokens n of a block.
    """

    tasks: Annotated[int, Ge(1), Le(100_000)] = 1
    task: Annotated[int, Ge(0), Le(99_999)] | None = None
    size: Size = 16
    blocks: Annotated[int, Ge(1), Le(10_000)] = 8
    block: Annotated[int, Ge(1), Le(1024)] = 16


class ConditionalBlocks(Part):
    """``(1 + gamma(z)) A_j + beta(z)`` inside the j-th block of n tokens of the episode, j modulo J.

    A task has one gamma and one beta for every place that a key can have in its block, the same in all blocks.
    """

    scores_queries = True

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        self.heads, self.task, block = dims.heads, options.task, options.block
        if options.task is not None and options.task >= options.tasks:
            raise ConfigError(
                f"camtl has {options.tasks} tasks, counted from 0, and no task {options.task}; "
                f"set tasks to at least {options.task + 1}"
            )
        self.vectors = nn.Parameter(torch.randn(options.tasks, options.size))
        self.film = nn.Linear(options.size, 2 * block)
        self.matrices = nn.Parameter(torch.randn(options.blocks, block, block) / block**0.5)

    def of_queries(self, q: Tensor, distance: Tensor, tokens: Tokens) -> Tensor:
        blocks, block = self.matrices.shape[:2]
        place, number = tokens.p % block, tokens.p // block % blocks
        # Counters of operations hook modules, and know no parameter as input in inference mode.
        z = self.vectors[tokens.task if self.task is None else self.task]  # the backbone asks for tokens.task
        gamma, beta = F.linear(z, self.film.weight, self.film.bias).chunk(2, -1)
        rows = (1 + gamma) * self.matrices[number, place] + beta
        return inside_block(rows, place, distance)[:, None].expand(-1, self.heads, -1, -1).to(q.dtype)


SPEC = Spec(
    id="B6", name="camtl", axis="prior",
    paper="Pilault et al. 2021, arXiv 2009.09139, section 2.1; Perez et al. 2018, arXiv 1709.07871",
    summary="Adds learned scores between tokens of one block, scaled and shifted by an embedding of the task.",
    build=ConditionalBlocks, options=Options,
    example={"prior": {"name": "camtl", "tasks": 3, "task": 0, "size": 4, "blocks": 2, "block": 3}},
    traits=Traits(
        causality="C*",
        family="EXPL",
        causal_form="blocks count from the start of the episode, and later ones use the weights of the first "
                    "again, there they cover a sentence; every layer has task vectors of its own; A starts at "
                    "random, in the authors' code at 0",
    ),
    needs=(Feature.SCORES,),
    formula="l_ts += (1 + gamma_c(z)) A_j[p_t mod n, c] + beta_c(z) where c = p_s mod n, j = p_t // n = p_s // n",
)  # fmt: skip
