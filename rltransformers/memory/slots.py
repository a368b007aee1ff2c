"""Memory slots: a few vectors per layer, one of which is rewritten at the end of every block of tokens.

Axes as in ``memory.interface``; K slots, b tokens of a block, n blocks that a call may finish, m of both together, h
heads. Blocks are counted in the episode position: the token at p lies in block p // b, and reads what the newest K of
the p // b finished blocks wrote. What block i rewrites is what block i - K wrote: slots stand in a queue, and what a
call writes follows them, as rows of their own, which later tokens read in place of those that they rewrite.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.spec import Feature, Refusal, Size, Spec, Traits
from rltransformers.functional import windows
from rltransformers.functional.blocks import ends_of_slots, newest_slots
from rltransformers.functional.call import Call
from rltransformers.functional.keys import At, Group
from rltransformers.functional.taps import newest_rows, with_past
from rltransformers.memory.interface import Form, MemoryOptions, Project, Remembered, RowMemory
from rltransformers.mixers.interface import LayerState


@dataclass(frozen=True)
class Options(MemoryOptions):
    """Options of memory slots.

    Attributes:
        slots: their number K.
        block: tokens after which one slot is rewritten.
        blend: share of the new vector in a slot that is rewritten; a slot that is empty takes all of it.
        heads: of the attention by which a slot reads a block; where they do not divide the width, the next smaller
            number that does.
    """

    slots: Size = 16
    block: Annotated[int, Ge(2), Le(10_000)] = 16
    blend: Annotated[float, Gt(0), Le(1)] = 0.5
    heads: Annotated[int, Ge(1), Le(1000)] = 4


class SlotMemory(RowMemory):
    """The newest inputs, and K slots: ``m' = (1 - blend) m + blend norm(m + W_o attention(W_q m, block))``.

    The gradient reaches the tokens of a call through what they write; what earlier calls wrote is a constant.
    """

    def __init__(
        self, rows: int, width: int, key_width: int, sinks: int, tokens_per_step: int, options: Options
    ) -> None:
        super().__init__(rows, width, key_width, sinks, tokens_per_step, stores_inputs=True)
        self.count, self.block, self.blend = options.slots, options.block, options.blend
        self.farthest = self.block * self.count
        self.heads = max(heads for heads in range(1, options.heads + 1) if width % heads == 0)
        self.start = nn.Parameter(0.02 * torch.randn(self.count, width))  # what an empty slot asks with
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.norm = nn.LayerNorm(width)

    def shapes(self, form: Form) -> dict[str, tuple[int, ...]]:
        """Rows of the window, slots in the order in which they were written, rows of the block that is not finished."""
        shapes = {**super().shapes(form), "slots": (self.count, self.width), "block": (self.block - 1, self.width)}
        return shapes if form is Form.TRAINING else {**shapes, "slot_keys": (self.count, self.key_width)}

    def with_keys(self, state: LayerState, project: Project, before: Int[Tensor, " B"]) -> LayerState:
        behind = windows.descending(self.count, before.device)
        last = (before[:, None] + 1) // self.block * self.block - 1 - self.block * behind
        keys = project(state["slots"], lambda: last).masked_fill((last < 0)[..., None], 0.0)
        return {**super().with_keys(state, project, before), "slot_keys": keys}

    def forward(self, x: Tensor, keys: Tensor, state: LayerState, call: Call, project: Project) -> Remembered:
        seen = super().forward(x, keys, state, call, project)
        tokens, time, count, block = call.tokens, x.shape[1], self.count, self.block
        if time == 1 and "key_ring" in state and tokens.length is None:
            return self.act(seen, x, state, call, project)
        # Of the blocks that wrote the slots, and of those that the call finishes, and their episode positions.
        ends, done = ends_of_slots(tokens.p, tokens.before, block, block, count)
        old, new = ends[:, :count], ends[:, count:]
        last = torch.cat([tokens.before[:, None] + 1 + old, tokens.p.gather(1, new.clamp(max=time - 1))], 1)

        rows = with_past(state["block"], x)
        blocks = windows.rows_up_to(rows, new + block - 1, block)
        slots = self.write(state["slots"], blocks, (last[:, count:] + 1) // block - 1)
        if "slot_keys" in state:
            slot_keys = with_past(state["slot_keys"], project(slots[:, count:], lambda: last[:, count:]))
        else:
            slot_keys = project(slots, lambda: last)

        newest = newest_slots(ends, done, tokens, block, count)
        for name, each in (("slots", slots), ("slot_keys", slot_keys)):
            if name in state:
                seen.state[name] = windows.take_rows(each, newest).to(state[name].dtype)
        seen.state["block"] = newest_rows(rows, state["block"], tokens)

        readable = count + -(-(time - 1) // block)  # the last token reads nothing that it finishes itself
        distance = torch.arange(time, device=x.device)[:, None] - ends[:, None, :readable]
        near = tokens.p % block + 1
        edge = torch.minimum(tokens.p, near + block * (count - 1))
        visible = (near[..., None] <= distance) & (distance <= edge[..., None])
        group = Group(slot_keys[:, :readable], At(distance, visible, self.farthest))
        return Remembered((group, *seen.past), seen.state)

    def act(self, seen: Remembered, x: Tensor, state: LayerState, call: Call, project: Project) -> Remembered:
        """The same for one token. Every stream computes what its block would write; most keep what they have."""
        p, count, block = call.tokens.p, self.count, self.block
        if ("slots", count, block) not in call.made:  # the same in all layers
            done, order = (p + 1) // block, torch.arange(count, device=p.device)
            distance = (p % block + 1)[..., None] + block * windows.descending(count, p.device)
            absent, ends = (order < count - done)[..., None], (p % block == block - 1)[..., None]
            place = At(distance, distance <= p[..., None], self.farthest)
            call.made["slots", count, block] = done, absent, ends, place
        done, absent, ends, place = call.made["slots", count, block]
        rows = with_past(state["block"], x)
        new = self.write(state["slots"], rows[:, None], done - 1)[:, count:]
        for name, each in (("slots", new), ("slot_keys", project(new, lambda: p))):
            next_slots = torch.cat([state[name][:, 1:], each.to(state[name].dtype)], 1)
            seen.state[name] = torch.where(ends, next_slots, state[name]).masked_fill(absent, 0.0)
        seen.state["block"] = newest_rows(rows, state["block"], call.tokens)
        return Remembered((Group(state["slot_keys"], place), *seen.past), seen.state)

    def write(
        self, slots: Float[Tensor, "B K D"], blocks: Float[Tensor, "B n b D"], number: Int[Tensor, "B n"]
    ) -> Float[Tensor, "B m D"]:
        """The slots, and behind them what the blocks with these numbers in their episodes write.

        A block rewrites what the one K blocks before it wrote, so that K blocks are written at once.
        """
        versions = [slots]
        for blocks_of, number_of in zip(blocks.split(self.count, 1), number.split(self.count, 1), strict=True):
            filled = (number_of >= self.count)[..., None]
            start = self.start[number_of.clamp(0, self.count - 1)]
            old = torch.where(filled, versions[-1][:, : number_of.shape[1]], start)
            new = self.norm(old + self.read(old, blocks_of))
            versions.append(torch.where(filled, old + self.blend * (new - old), new))
        return torch.cat(versions, 1)

    def read(self, slots: Float[Tensor, "B n D"], blocks: Float[Tensor, "B n b D"]) -> Float[Tensor, "B n D"]:
        """What every slot reads from the tokens of its block, which are normalized.

        One query stands against b keys: it is cheaper to bring the query to the tokens than tokens to keys and values.
        """
        tokens = F.layer_norm(blocks, blocks.shape[-1:])
        into_key, into_value = (part.weight.unflatten(0, (self.heads, -1)) for part in (self.key, self.value))
        query = torch.einsum("bnhd,hdx->bnhx", self.query(slots).unflatten(-1, (self.heads, -1)), into_key)
        weights = (query @ tokens.transpose(-1, -2) / math.sqrt(into_key.shape[1])).softmax(-1)
        values = torch.einsum("bnhx,hdx->bnhd", weights.to(tokens.dtype) @ tokens, into_value)
        read: Tensor = self.out(values.flatten(2))
        return read


SPEC = Spec(
    id="N29", name="slots", axis="memory_kind",
    paper="Cherepanov et al. 2025, arXiv 2510.07151, sections 3.1 to 3.3; Bulatov et al. 2022, arXiv 2207.06881",
    summary="Every layer has slots, and every block of tokens rewrites the one that was written least recently.",
    build=SlotMemory, options=Options, example={"memory_kind": {"name": "slots", "slots": 2, "block": 3}},
    traits=Traits(
        family="SLOT", horizon="episode", state="(memory + K + block - 1) D", time="T^2",
        causal_form="slots are read in one softmax with the window, as in the recurrent memory transformer, in "
                    "ELMUR by a second attention; blocks count from the start of the episode, and tokens see "
                    "across their borders as far as the memory reaches; slots read inputs of the layer, there its"
                    " outputs, and have no feed-forward part; empty slots are not read, and query with a learned "
                    "vector, there a random one; a first write replaces the slot, as in the paper, in the "
                    "authors' code it is blended with the random vector; the gradient passes from block to block "
                    "of a call",
    ),
    needs=(Feature.SLOTS,),
    refuses=(
        Refusal(Feature.NO_MEMORY, "it keeps slots, so that memory 0 does not make the layers memoryless"),
    ),
    formula="at the end of block n: i = n mod K, u = LN(m_i + W_o attention(W_q m_i; LN(x_s) of the block)); "
    "m_i = u if n < K, (1 - blend) m_i + blend u otherwise; keys of a token are [written slots; window]",
)  # fmt: skip
