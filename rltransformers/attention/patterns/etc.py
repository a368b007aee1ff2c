"""ETC: a window, and one global token for every completed block of the episode (Ainslie et al. 2020).

Axes: B batch, H heads, T tokens, S key rows, n blocks of a call, L earlier blocks, G globals, b tokens of a block, K
head width, X numbers of a key and its value.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rltransformers.attention.reach import Reach, check_memory
from rltransformers.attention.roles import Chooser, Heads, Selected
from rltransformers.core.spec import Feature, Refusal, Size, Spec, Traits
from rltransformers.functional.blocks import earlier_blocks, episode_blocks
from rltransformers.functional.call import Call
from rltransformers.functional.keys import At, oldest_first, slots_of
from rltransformers.functional.windows import fetch
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Options:
    """Options of the extended transformer construction.

    Attributes:
        window: steps that a token sees, its own included.
        block: tokens of a block, which a global token stands for.
        globals: global tokens that a token sees, and that a global token sees; None for as many as the memory
            holds, 0 for none.
    """

    window: Size
    block: Annotated[int, Ge(1), Le(4096)] = 8
    globals: Annotated[int, Ge(0), Le(4096)] | None = None


class GlobalBlocks(Chooser):
    """Tokens see a window and the globals of completed blocks; a global sees its own block and the globals before it.

    The relations long to global, global to long and global to global have vectors of their own, by how many blocks lie
    between two of them, which are added to keys (the relative position labels of the paper). What the globals of a
    token see themselves has to be in the memory, too.
    """

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        window, block, per = options.window, options.block, dims.tokens_per_step
        count = options.globals
        if count is None:
            count = max(1, ((dims.memory * per + 1) // block - 1) // 2)
        back = (2 * count + 1) * block - 1 if count else 0  # tokens
        steps = max(window - 1, -(-back // per))
        what = f"pattern 'etc' with a window of {window} steps and {count} globals of {block} tokens"
        check_memory(what, steps, dims.memory, ", or choose a shorter window, smaller blocks or fewer globals")
        self.block, self.count = block, count
        self.band = Reach(window, tokens_per_step=per)
        self.reach = Reach(dims.memory + 1, tokens_per_step=per)
        if count:
            self.query = nn.Parameter(torch.randn(dims.heads, dims.head_dim) * dims.head_dim**-0.5)
            self.to_global = nn.Parameter(torch.zeros(count, dims.head_dim))
            self.to_long = nn.Parameter(torch.zeros(dims.head_dim))
            self.among_globals = nn.Parameter(torch.zeros(count, dims.head_dim))

    def choose(
        self, q: Float[Tensor, "B H T K"], window: Heads, state: dict[str, Tensor], call: Call
    ) -> tuple[Selected, dict[str, Tensor]]:
        p, rows = call.tokens.p, window.k.shape[2]
        back = torch.arange(self.band.horizon + 1, device=p.device)
        here = torch.arange(rows - p.shape[1], rows, device=p.device)[:, None] - back
        index = slots_of(here.clamp(min=0), window.place, rows).expand(*p.shape, len(back))
        exists = (back <= torch.minimum(self.band.limit(p), p)[..., None]) & (here >= 0)
        at = At(back.expand(*p.shape, len(back)), exists)
        others = (self.globals(q, window, p),) if self.count else ()
        return Selected(index[:, None], at, others=others), state

    def globals(self, q: Float[Tensor, "B H T K"], window: Heads, p: Int[Tensor, "B T"]) -> Heads:
        """The globals that every token sees, oldest first."""
        rows, width = window.k.shape[2], window.k.shape[-1]
        both = oldest_first(torch.cat([window.k, window.v], -1), window.place, 2)
        blocks = episode_blocks(p, rows - p.shape[1], self.block)
        made, present = self.of_blocks(both, blocks.start, blocks.number)
        number = torch.arange(self.count, device=p.device)
        slot = blocks.of_token[..., None] * self.count + number
        k, v = fetch(made.flatten(2, 3), slot[:, None]).split_with_sizes([width, both.shape[-1] - width], -1)
        seen = present.flatten(1).gather(1, slot.flatten(1)).unflatten(1, slot.shape[1:])
        ahead = self.count - number  # blocks from a global to the token's own block
        distance = blocks.place[..., None] + 1 + (ahead - 1) * self.block
        assert self.reach is not None
        place = At(distance, seen, farthest=self.reach.horizon)
        return Heads(k, v, place, (q @ self.to_global[ahead - 1].T.to(q.dtype)) * q.shape[-1] ** -0.5)

    def of_blocks(
        self, rows: Float[Tensor, "B H S X"], start: Int[Tensor, "B n"], number: Int[Tensor, "B n"]
    ) -> tuple[Float[Tensor, "B H n G X"], Bool[Tensor, "B n G"]]:
        """Globals of the blocks before those that begin at ``start``, and which of them there are."""
        count, width = self.count, self.query.shape[-1]
        # What globals see lies further back than they do.
        own, present = earlier_blocks(rows, start, number, self.block, 2 * count)
        query = self.query.to(rows.dtype) * width**-0.5
        of_leaves = torch.einsum("bhnljk,hk->bhnlj", own[..., :width], query)
        alone = (of_leaves.softmax(-1)[..., None, :].to(rows.dtype) @ own).squeeze(-2)  # B H n L X
        before = alone[..., :-1, :].unfold(3, count, 1).transpose(-1, -2)  # B H n G G' X: the globals before each
        there = present[..., :-1].unfold(2, count, 1)[:, None]
        labels = torch.einsum("gk,hk->hg", self.among_globals.flip(0).to(rows.dtype), query)
        of_globals = torch.einsum("bhngmk,hk->bhngm", before[..., :width], query) + labels[:, None, None]
        of_globals = of_globals.masked_fill(~there, torch.finfo(of_globals.dtype).min)
        own, of_leaves = own[:, :, :, count:], of_leaves[:, :, :, count:]
        of_leaves = of_leaves + torch.einsum("k,hk->h", self.to_long.to(rows.dtype), query)[:, None, None, None]
        shares = torch.cat([of_leaves, of_globals], -1).softmax(-1).to(rows.dtype)
        seen = torch.cat([own, before], -2)
        return (shares[..., None, :] @ seen).squeeze(-2).to(rows.dtype), present[..., count:]


SPEC = Spec(
    id="A13", name="etc", axis="pattern", paper="Ainslie et al. 2020, arXiv 2004.08483, section 3",
    summary="Every token sees the newest `window` steps and one global token for each completed block before its own.",
    build=GlobalBlocks, options=Options, example={"pattern": {"name": "etc", "window": 3, "block": 2, "globals": 1}},
    traits=Traits(
        causality="X",
        family="SEL",
        horizon="memory",
        state="memory D; a step makes the globals anew from its keys",
        causal_form="one global token per completed block, there global tokens that read the whole sequence; in "
                    "every layer a learned query makes it from the keys and values of its block and of earlier "
                    "globals, there it is a token with layers of its own; those earlier globals are made from "
                    "their own blocks alone; no contrastive pretraining",
    ),
    offers=(Feature.REACH, Feature.CHOICE), needs=(Feature.PATTERNS, Feature.PRODUCTS),
    refuses=(Refusal(Feature.HEAD_PATTERNS, "its globals serve all heads alike"),),
    formula="one softmax over {0 <= d < window} and {g_m : m < block(t)}, l_tm = q_t (k_m + a[block(t) - m]) / sqrt(Dh)"
    "; (k_m, v_m) = softmax over [block m; (k'_j, v'_j), m - globals <= j < m] by a learned query c_h, with "
    "c_h (k_s + b) / sqrt(Dh) and c_h (k'_j + e[m - j]) / sqrt(Dh); (k'_j, v'_j) = softmax over [block j] by c_h",
)  # fmt: skip
