"""Compressive memory: old layer inputs are squeezed by a factor and kept longer (Rae et al. 2019).

Axes as in ``memory.interface``; c tokens make one block, block k covers episode positions [k c, (k + 1) c). The form
here is anchored to the episode: F(p) = max(0, p - recent) // c blocks are compressed for the token at p, it sees the
raw tokens from c F(p) on and the newest ``slots`` compressed blocks, however the stream is split into calls.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.attention.reach import Reach
from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Feature, Loss, Refusal, Size, Spec, Traits
from rltransformers.functional import windows
from rltransformers.functional.call import Call, Tokens
from rltransformers.functional.keys import At, Group
from rltransformers.functional.windows import compressed_blocks
from rltransformers.memory.interface import Compressed, Form, MemoryOptions, Project, Remembered, RowMemory, ring_of
from rltransformers.mixers.interface import LayerState

Function = Literal["mean", "max", "conv"]
Objective = Literal["autoencode", "attention"]


@dataclass(frozen=True)
class RawPart(Reach):
    """Distances down to the first token that is not in a compressed block."""

    recent: int = 0
    rate: int = 1

    @property
    def anchored(self) -> bool:
        return True

    def limit(self, p: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
        return p - self.rate * compressed_blocks(p, self.recent, self.rate)


class CompressiveMemory(RowMemory):
    """``recent`` + ``rate`` raw inputs and ``blocks`` compressed ones.

    A learned compression is trained by its own loss only (the loss "compression"), the task's gradient stops at the
    memory. The loss is the squared error of decoding the raw inputs again, or of what content attention of the current
    tokens makes of the compressed inputs in place of the raw ones; the mixer computes the second one.
    """

    def __init__(
        self, recent: int, blocks: int, rate: int, function: Function, objective: Objective, width: int, key_width: int
    ) -> None:
        super().__init__(recent + rate, width, key_width, sinks=0, tokens_per_step=1, stores_inputs=True)
        self.recent, self.blocks, self.rate, self.function = recent, blocks, rate, function
        self.farthest = recent + rate * blocks
        self.encode = nn.Linear(rate * width, width) if function == "conv" else None
        decodes = function == "conv" and objective == "autoencode"
        self.decode = nn.Linear(width, rate * width) if decodes else None

    def shapes(self, form: Form) -> dict[str, tuple[int, ...]]:
        """Raw inputs, which are compressed later, compressed inputs, and keys of both while acting."""
        acts = form is not Form.TRAINING
        shapes = {**super().shapes(Form.ACTING if acts else form), "slots": (self.blocks, self.width)}
        return shapes | ({"slot_keys": (self.blocks, self.key_width)} if acts else {})

    def with_keys(self, state: LayerState, project: Project, before: Int[Tensor, " B"]) -> LayerState:
        keys = project(state["slots"], lambda: self.last_of(self.newest(before)))
        return super().with_keys(state, project, before) | {"slot_keys": keys}

    def newest(self, p: Int[Tensor, " B"]) -> Int[Tensor, "B n"]:
        """Numbers of the newest blocks that the token at p sees; negative where there are fewer."""
        first = compressed_blocks(p, self.recent, self.rate)[:, None] - self.blocks
        return first + torch.arange(self.blocks, device=p.device)

    def last_of(self, block: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
        """Position of the last token of a block, which is the place of the block."""
        return (block + 1) * self.rate - 1

    def compress(self, blocks: Float[Tensor, "B N c D"]) -> Float[Tensor, "B N D"]:
        if self.encode is not None:
            return self.encode(blocks.flatten(2))
        return blocks.mean(2) if self.function == "mean" else blocks.amax(2)

    def forward(self, x: Tensor, keys: Tensor, state: LayerState, call: Call, project: Project) -> Remembered:
        seen = super().forward(x, keys, state, call, project)
        if "key_ring" in state:
            return self.act(seen, state, call, project)
        tokens, after = call.tokens, seen.state
        inputs = torch.cat([state["hidden"], x], 1).detach()
        memory = inputs.shape[1] - x.shape[1]
        end, number = self.new_blocks(tokens, memory)
        blocks = windows.rows_up_to(inputs, end, self.rate)
        compressed = self.compress(blocks)
        made = Compressed(blocks, compressed, number >= 0) if self.encode is not None else None
        if made is not None and self.decode is not None:
            if call.probe.listens:
                error = reconstruction(self.decode(compressed), made)
                call.probe.loss("compression", error, made.exists.sum())
            made = None
        old = self.newest(tokens.before)
        old_end = memory - 1 - (tokens.before[:, None] - (old + 1) * self.rate + 1)
        hidden = torch.cat([state["slots"], compressed.detach()], 1)
        block = torch.cat([old, number], 1)
        row = torch.cat([old_end, end], 1)
        from_state = torch.arange(row.shape[1], device=x.device) < self.blocks
        t = memory + torch.arange(x.shape[1], device=x.device)
        distance = t[:, None] - row[:, None]
        own = torch.where(from_state, tokens.live[..., None], (distance >= 0) & (distance <= tokens.p[..., None]))
        done = compressed_blocks(tokens.p, self.recent, self.rate)[..., None]
        k = block[:, None]
        visible = own & (k >= 0) & (k >= done - self.blocks) & (k < done)
        after["slots"] = self.keep(hidden, block, row, from_state, tokens, memory)
        if "slot_keys" in state:
            after["slot_keys"] = project(after["slots"], lambda: self.last_of(self.newest(tokens.last_position())))
        slots = Group(project(hidden, lambda: self.last_of(block)), At(distance, visible, self.farthest))
        return Remembered((slots, *seen.past), after, made)

    def act(self, seen: Remembered, state: LayerState, call: Call, project: Project) -> Remembered:
        """Add the blocks to what one token sees: ``rate`` raw inputs that it leaves behind the recent ones become one.

        Every stream computes the block that it would get; the streams that get none keep what they have.
        """
        p = call.tokens.p
        done = compressed_blocks(p, self.recent, self.rate)
        ring = seen.state["hidden_ring"]
        oldest = ring_of(self.slots, call)[1].oldest
        raw = ring.index_select(1, (oldest + torch.arange(self.rate, device=p.device)) % self.slots)
        block = self.compress(raw[:, None]).detach()
        fresh = (done > compressed_blocks(p - 1, self.recent, self.rate))[..., None]
        order = torch.arange(self.blocks, device=p.device)
        exists = (order >= self.blocks - done)[..., None]
        for name, new in (("slots", block), ("slot_keys", project(block, lambda: self.last_of(done - 1)))):
            old = state[name]
            moved = torch.where(fresh, torch.cat([old[:, 1:], new.to(old.dtype)], 1), old)
            seen.state[name] = moved.masked_fill(~exists, 0.0)
        k = (done - self.blocks + order)[:, None]
        distance = p[..., None] - (k + 1) * self.rate + 1
        slots = Group(seen.state["slot_keys"], At(distance, k >= 0, self.farthest))
        return Remembered((slots, *seen.past), seen.state)

    def new_blocks(self, tokens: Tokens, memory: int) -> tuple[Int[Tensor, "B N"], Int[Tensor, "B N"]]:
        """Last row and number of every block that is complete in the rows and not yet a slot; number -1 fills up."""
        p = torch.cat([windows.positions_behind(tokens.before, memory), tokens.p], 1)
        number = (p + 1) // self.rate - 1
        fresh = number >= compressed_blocks(tokens.before, self.recent, self.rate)[:, None]
        fresh[:, memory:] = (fresh[:, memory:] | ~tokens.live) & tokens.valid()
        complete = (p >= 0) & ((p + 1) % self.rate == 0) & fresh
        count = int(complete.sum(1).max()) if complete.numel() else 0
        end = torch.argsort((~complete).to(torch.uint8), dim=1, stable=True)[:, :count]
        exists = torch.gather(complete, 1, end)
        return end, torch.where(exists, torch.gather(number, 1, end), -1)

    def keep(
        self, hidden: Tensor, block: Tensor, row: Tensor, from_state: Tensor, tokens: Tokens, memory: int
    ) -> Float[Tensor, "B n D"]:
        """The newest compressed blocks of the last valid token's episode."""
        p = tokens.last_position()
        distance = tokens.last_row(memory)[:, None] - row
        live = tokens.last(tokens.live, torch.ones_like(p, dtype=torch.bool))
        own = torch.where(from_state, live[:, None], (distance >= 0) & (distance <= p[:, None]))
        wanted = self.newest(p)
        match = (wanted[..., None] == block[:, None]) & own[:, None] & (wanted >= 0)[..., None]
        index = torch.where(match.any(-1), match.to(torch.uint8).argmax(-1), -1)
        return windows.take_rows(hidden, index)


def reconstruction(decoded: Float[Tensor, "B N cD"], compressed: Compressed) -> Float[Tensor, ""]:
    """Mean squared error of decoding the blocks (auto-encoding)."""
    exists = compressed.exists.to(decoded.dtype)
    error = F.mse_loss(decoded, compressed.blocks.flatten(2), reduction="none").mean(-1)
    return (error * exists).sum() / exists.sum().clamp(min=1)


@dataclass(frozen=True)
class Options(MemoryOptions):
    """Options of the compressive memory.

    Attributes:
        slots: compressed blocks that are kept.
        rate: tokens c of a block.
        function: how a block becomes one vector; "conv" is learned by the loss compression; without it in ``losses``
            it keeps its random initial weights.
        objective: what a learned compression is trained for.
    """

    slots: Size = 16
    rate: Size = 4
    function: Function = "conv"
    objective: Objective = "autoencode"

    def reach(self, memory: int) -> RawPart:
        """The tokens whose block is not compressed yet."""
        return RawPart(memory + self.rate, recent=memory, rate=self.rate)


def build(
    rows: int, width: int, key_width: int, sinks: int, tokens_per_step: int, options: Options
) -> CompressiveMemory:
    """Build a memory of compressed blocks behind the raw tokens, of which ``rows`` lie behind a token."""
    if options.function != "conv" and options.objective != Options.objective:
        raise ConfigError(
            f"compressive objective {options.objective!r} trains a compression that learns, but function "
            f"{options.function!r} does not; set function to 'conv' or leave objective out"
        )
    recent = rows + 1 - options.rate
    return CompressiveMemory(recent, options.slots, options.rate, options.function, options.objective, width, key_width)


SPEC = Spec(
    id="M2", name="compressive", axis="memory_kind", paper="Rae et al. 2019, arXiv 1911.05507",
    summary="Keeps recent inputs as they are and older ones compressed, `rate` into one.", build=build, options=Options,
    example={"memory": 5, "memory_kind": {"name": "compressive", "slots": 3, "rate": 2}},
    traits=Traits(
        family="SLOT", horizon="memory + rate (slots + 1)", state="(memory + rate + slots) D", time="T^2",
        causal_form="blocks count from the start of the episode; the position of a slot is that of its last token",
        stops_gradient="inputs of compressed blocks",
    ),
    needs=(Feature.SLOTS,),
    refuses=(
        Refusal(Feature.REACH, "the memory itself decides which tokens are visible"),
        Refusal(Feature.HEAD_PATTERNS, "the memory itself decides which tokens are visible, to all heads alike"),
        Refusal(Feature.STEP_TOKENS, "its blocks count tokens and would cut through a step"),
        Refusal(Feature.NO_MEMORY, "it keeps compressed rows, so that memory 0 does not make the layers memoryless"),
    ),
    produces=(Loss("compression", {"function": "conv"}),),
    formula="the oldest c inputs become SG(f_c(inputs)); keys are [compressed; raw; own]",
)  # fmt: skip
