"""Sparse Sinkhorn attention: blocks read their own tokens and a learned mixture of earlier blocks (Tay et al. 2020).

Axes: B batch, H heads, T tokens, S key rows, n blocks of a call, L earlier blocks, b tokens of a block, K key width,
V value width, X numbers of a key and its value.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rltransformers.attention.roles import Chooser, Heads, Selected
from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Feature, Refusal, Spec, Traits
from rltransformers.functional.blocks import earlier_blocks, episode_blocks
from rltransformers.functional.call import Call
from rltransformers.functional.keys import At, oldest_first, slots_of
from rltransformers.functional.windows import fetch
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Options:
    """Options of Sinkhorn attention.

    Attributes:
        block: tokens of a block.
        temperature: of the mixture; lower ones come closer to a choice of one block.
    """

    block: Annotated[int, Ge(1), Le(4096)] = 8
    temperature: Annotated[float, Ge(1e-3), Le(1e3)] = 0.75


class Sinkhorn(Chooser):
    """Sorts earlier blocks for every block of queries: each of their rows becomes a mixture over the blocks.

    A block scores the completed ones before it in the memory, by products of what it has seen so far with their means;
    one that there is nothing before reads a learned key and value in their place.
    """

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        self.block, self.temperature = options.block, options.temperature
        visible = dims.memory * dims.tokens_per_step + 1
        self.earlier = visible // self.block - 1  # as many as the memory holds beside the own one
        if self.earlier < 1:
            back = 2 * self.block - 1
            smaller = f" or block to at most {visible // 2}" if visible > 1 else ""
            raise ConfigError(
                f"selection 'sinkhorn' with blocks of {self.block} looks {back} tokens back, further than memory "
                f"{dims.memory}; set memory to at least {-(-back // dims.tokens_per_step)}{smaller}"
            )
        self.of_block = nn.Parameter(torch.randn(dims.heads, dims.head_dim, dims.head_dim) * dims.head_dim**-0.5)
        self.none_key = nn.Parameter(0.02 * torch.randn(dims.heads, dims.head_dim))
        self.none_value = nn.Parameter(torch.zeros(dims.heads, dims.value_dim))
        self.none_score = nn.Parameter(torch.zeros(dims.heads))

    def choose(
        self, q: Float[Tensor, "B H T K"], window: Heads, state: dict[str, Tensor], call: Call
    ) -> tuple[Selected, dict[str, Tensor]]:
        """The tokens of the query's block up to itself, and the mixed rows of the blocks before it."""
        p, rows, block = call.tokens.p, window.k.shape[2], self.block
        both = oldest_first(torch.cat([window.k, window.v], -1), window.place, 2)
        blocks = episode_blocks(p, rows - p.shape[1], block)
        made = self.mixed(both, blocks.start, blocks.number)  # B H n b X
        size = made.shape[2]
        index = blocks.of_token[:, None, :, None] * block + torch.arange(block, device=p.device)
        k, v = fetch(made.flatten(2, 3), index.clamp(max=size * block - 1)).split_with_sizes(
            [window.k.shape[-1], window.v.shape[-1]], -1
        )
        inside = torch.arange(block, device=p.device)
        back = blocks.place[..., None] + block - inside  # as the rows of the block before
        others = Heads(k, v, At(back.expand(*p.shape, block), torch.ones_like(back, dtype=torch.bool), 2 * block - 1))
        here = torch.arange(rows - p.shape[1], rows, device=p.device)[:, None] - inside
        at = At(inside.expand(*p.shape, block), inside <= blocks.place[..., None])
        own = slots_of(here.clamp(min=0), window.place, rows).expand(*p.shape, block)
        return Selected(own[:, None], at, others=(others,)), state

    def mixed(
        self, rows: Float[Tensor, "B H S X"], start: Int[Tensor, "B n"], number: Int[Tensor, "B n"]
    ) -> Float[Tensor, "B H n b X"]:
        """Rows of keys and values that stand for the blocks before those that begin at ``start``."""
        own, present = earlier_blocks(rows, start, number, self.block, self.earlier)
        begin = fetch(rows, start.clamp(min=0)[:, None, :, None])[:, :, :, 0]
        shares = self.shares(own[..., : self.none_key.shape[-1]], begin[..., : self.none_key.shape[-1]], present)
        none = torch.cat([self.none_key, self.none_value], -1)[:, None, None]
        found = torch.einsum("bhnl,bhnljx->bhnjx", shares[..., 1:], own)
        return (found + shares[..., :1, None] * none).to(rows.dtype)

    def shares(
        self, keys: Float[Tensor, "B H n L b K"], begin: Float[Tensor, "B H n K"], present: Bool[Tensor, "B n L"]
    ) -> Float[Tensor, "B H n M"]:
        """Share of nothing (first) and of every earlier block in the rows that a block of queries reads."""
        there = present[:, None, ..., None]
        means = keys.mean(-2)
        count = present.sum(-1)[:, None, :, None] * self.block + 1
        seen = ((keys.sum(-2) * there).sum(-2) + begin) / count
        # Two products: for three operands opt_einsum, where it is installed, makes numbers of sizes.
        query = torch.einsum("bhnk,hkj->bhnj", seen, self.of_block)
        scores = torch.einsum("bhnj,bhnlj->bhnl", query, means) * keys.shape[-1] ** -0.5
        scores = scores.masked_fill(~present[:, None], torch.finfo(scores.dtype).min)
        nothing = self.none_score[:, None, None].to(scores.dtype).expand(*scores.shape[:3], 1)
        return (torch.cat([nothing, scores], -1) / self.temperature).softmax(-1)


SPEC = Spec(
    id="C4", name="sinkhorn", axis="selection", paper="Tay et al. 2020, arXiv 2002.11296, section 3",
    summary="Each block of queries reads itself and a learned mixture of the blocks before it.",
    build=Sinkhorn, options=Options, example={"selection": {"name": "sinkhorn", "block": 3}},
    traits=Traits(
        causality="X",
        family="SEL",
        horizon="memory",
        causal_form="only completed blocks before the token's own are mixed, by a softmax over rows, there by "
                    "normalizing rows and columns in turn, with noise; blocks are scored by products of mean "
                    "keys, there by a network with one output per block; a learned key and value replace a "
                    "missing block",
    ),
    needs=(Feature.LOGITS, Feature.PRODUCTS),
    refuses=(
        Refusal(Feature.CARRY, "the mixed rows that a layer reads are not those of the next one"),
        Refusal(Feature.CHOICE, "blocks choose the keys of a query themselves"),
        Refusal(Feature.REACH, "it mixes everything that the memory holds"),
    ),
    formula="R_uw = softmax_(w < u)(psi_u A phi_w / (temperature sqrt(Dh))), K'_u = sum_w R_uw K_w; "
    "one softmax over [K'_u; own block]",
)  # fmt: skip
