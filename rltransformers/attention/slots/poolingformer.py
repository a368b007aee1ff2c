"""Poolingformer, causal: a window of tokens, then a longer window of pooled keys and values made of its outputs.

Axes: B batch, T tokens, N slots, C tokens of a chunk, n chunks, k kernel, H heads, G key-value heads, D model width,
Dh and Dv widths of a key and of a value, E = G (Dh + Dv).
"""

import itertools
import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.attention.layer import Attention
from rltransformers.attention.plan import Plan
from rltransformers.attention.reach import Pattern, Reach, block_size
from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Feature, Size, Spec, Traits
from rltransformers.functional import windows
from rltransformers.functional.blocks import ends_of_slots, newest_slots, slots_of_chunks
from rltransformers.functional.call import EVERY, Call, Tokens, chosen
from rltransformers.functional.keys import Past
from rltransformers.functional.taps import newest_rows, with_past
from rltransformers.mixers.interface import Dims, Mixed

Pooling = Literal["mean", "max", "dynamic"]


class Pool(nn.Module):
    """Keys and values of ``kernel`` tokens as one: their mean or maximum, or a mixture that the middle one chooses."""

    def __init__(self, dims: Dims, kernel: int, pooling: Pooling) -> None:
        super().__init__()
        self.dims, self.kernel, self.pooling = dims, kernel, pooling
        self.width = dims.kv_heads * dims.head_dim
        self.weigh: nn.Linear | None = None
        if pooling == "dynamic":
            self.weigh = nn.Linear(dims.kv_heads * dims.value_dim, dims.kv_heads * kernel, bias=False)

    def forward(self, rows: Float[Tensor, "B N k E"]) -> Float[Tensor, "B N E"]:
        if self.weigh is None:
            return rows.amax(2) if self.pooling == "max" else rows.mean(2)
        groups = self.dims.kv_heads
        k, v = rows[..., : self.width], rows[..., self.width :]
        weights = self.weigh(v[:, :, self.kernel // 2]).unflatten(-1, (groups, self.kernel)).softmax(-1)
        parts = (part.unflatten(-1, (groups, -1)) for part in (k, v))
        return torch.cat([torch.einsum("bngk,bnkgx->bngx", weights, part).flatten(2) for part in parts], -1)


class Poolingformer(Attention):
    """``y + z``: y is attention in a window of ``window`` steps, z attention of y to pooled rows of y further back.

    Pooled rows belong to the state, made with the weights of their time; the gradient reaches those of the call.

    Args:
        reach: tokens of the second window; a slot is seen when all of its tokens lie in it.
    """

    def __init__(self, dims: Dims, plan: Plan, window: int, reach: int, kernel: int, stride: int, pool: Pool) -> None:
        super().__init__(dims, replace(plan, pattern=Pattern((Reach(window, tokens_per_step=dims.tokens_per_step),))))
        self.span_of_slots, self.kernel, self.stride, self.pool = reach, kernel, stride, pool
        self.slots = (reach - kernel) // stride + 1
        self.second_widths = [dims.heads * dims.head_dim, dims.kv_heads * (dims.head_dim + dims.value_dim)]
        self.second = dims.projection(dims.width, sum(self.second_widths))
        self.second_output = dims.projection(dims.heads * dims.value_dim, dims.width)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Pooled rows, and rows that the next slots are made of."""
        width = self.second_widths[1]
        recent = {"recent": (self.kernel - 1, width)} if self.kernel > 1 else {}
        return super().state_shapes() | {"pooled": (self.slots, width)} | recent

    def forward(
        self, h: Tensor, query: Tensor, past: Past, state: dict[str, Tensor], call: Call, below: Tensor | None
    ) -> Mixed:
        first = super().forward(h, query, past, state, replace(call, wanted=EVERY), below)
        z, after = self.second_level(first.out, state, call.tokens)
        return Mixed(chosen(first.out + z, call.wanted), first.state | after, first.logits)

    def second_level(
        self, y: Float[Tensor, "B T D"], state: dict[str, Tensor], tokens: Tokens
    ) -> tuple[Float[Tensor, "B T D"], dict[str, Tensor]]:
        """Values that the tokens read from pooled rows, and the state after them."""
        query, fresh = self.second(y).split_with_sizes(self.second_widths, -1)
        rows = with_past(state["recent"], fresh) if self.kernel > 1 else fresh
        ends, done = ends_of_slots(tokens.p, tokens.before, self.kernel, self.stride, self.slots)
        pooled = self.pool(windows.rows_up_to(rows, self.kernel - 1 + ends[:, self.slots :], self.kernel))
        slots = with_past(state["pooled"], pooled.to(fresh.dtype))
        z = self.second_output(self.read(query, slots, ends, done, tokens).flatten(2))
        newest = newest_slots(ends, done, tokens, self.kernel, self.slots)
        after = {"pooled": windows.take_rows(slots, newest).to(state["pooled"].dtype)}
        if self.kernel > 1:
            after["recent"] = newest_rows(rows, state["recent"], tokens)
        return z, after

    def read(self, query: Tensor, slots: Tensor, ends: Tensor, done: Tensor, tokens: Tokens) -> Tensor:
        """Outputs of the heads [B, T, H, Dv]; long calls are cut into chunks with slots of their own."""
        time, size = query.shape[1], block_size(self.span_of_slots)
        if time <= size:
            return self.of_chunk(query, slots, ends, tokens.p)
        count, spare = -(-time // size), -(-size // self.stride)
        slots, ends = F.pad(slots, (0, 0, 0, spare)), F.pad(ends, (0, spare), value=count * size)
        slots, ends = slots_of_chunks(slots, ends, done, size, self.slots + spare)
        found = self.of_chunk(windows.fold(query, size), slots, ends, windows.fold(tokens.p, size))
        return windows.unfold_tokens(found, time, query.shape[0])

    def of_chunk(
        self, query: Float[Tensor, "B C Q"], slots: Float[Tensor, "B N E"], ends: Tensor, p: Tensor
    ) -> Float[Tensor, "B C H Dv"]:
        """Softmax attention over the visible slots; zeros where there are none."""
        heads, groups = self.dims.heads, self.dims.kv_heads
        distance = torch.arange(p.shape[1], device=p.device)[:, None] - ends[:, None]
        edge = p.clamp(max=self.span_of_slots - 1) - (self.kernel - 1)
        seen = ((distance >= 0) & (distance <= edge[..., None]))[:, None]
        k, v = (part.repeat_interleave(heads // groups, -2) for part in self.score.keys_of(slots))
        q = query.unflatten(-1, (heads, -1))
        logits = torch.einsum("bchd,bnhd->bhcn", q, k) / math.sqrt(q.shape[-1])
        weights = logits.masked_fill(~seen, torch.finfo(logits.dtype).min).softmax(-1) * seen
        return torch.einsum("bhcn,bnhd->bchd", weights.to(v.dtype), v)


@dataclass(frozen=True)
class Options:
    """Options of Poolingformer.

    Attributes:
        window: steps that the first level sees, the token's own included; default: a quarter of those in the memory.
        reach: steps in which the second level sees pooled rows; default: what the memory holds besides.
        kernel: tokens that are pooled.
        stride: tokens from one slot to the next.
        pooling: the mean, the maximum, or a mixture with weights that the value in the middle gives ("dynamic").
    """

    window: Size | None = None
    reach: Size | None = None
    kernel: Annotated[int, Ge(1), Le(4096)] = 5
    stride: Annotated[int, Ge(1), Le(4096)] = 4
    pooling: Pooling = "dynamic"


def build(dims: Dims, plan: Plan, options: Options) -> Poolingformer:
    """Build both windows and the pooling of one layer."""
    if options.stride > options.kernel:
        raise ConfigError(
            f"poolingformer with stride={options.stride} and kernel={options.kernel} leaves tokens out; "
            f"choose a stride of at most {options.kernel}"
        )
    least, (window, reach) = -(-options.kernel // dims.tokens_per_step), sizes(options, dims.memory)
    if options.reach is not None and options.reach < least:
        raise ConfigError(
            f"poolingformer pools {options.kernel} tokens, a reach of {options.reach} steps has fewer; "
            f"set reach to at least {least}"
        )
    if not fits(options, dims.memory, least):
        steps = next(steps for steps in itertools.count(dims.memory) if fits(options, steps, least))
        raise ConfigError(
            f"poolingformer with window={window}, reach={reach}, kernel={options.kernel} does not fit into a memory of "
            f"{dims.memory}; raise memory to {steps} steps or choose smaller windows"
        )
    pool = Pool(dims, options.kernel, options.pooling)
    return Poolingformer(dims, plan, window, reach * dims.tokens_per_step, options.kernel, options.stride, pool)


def sizes(options: Options, memory: int) -> tuple[int, int]:
    """Steps of both windows: together they end where the memory does, where the options do not say otherwise."""
    window = options.window or max(1, (memory + 1) // 4)
    return window, options.reach or max(1, memory + 2 - window)


def fits(options: Options, memory: int, least: int) -> bool:
    """Whether a memory holds both windows, and the second one the tokens of a slot."""
    window, reach = sizes(options, memory)
    return window + reach - 2 <= memory and reach >= least


SPEC = Spec(
    id="S11", name="poolingformer", axis="mixer", paper="Zhang et al. 2021, arXiv 2105.04371",
    summary="Attention in a short window, then a second attention of its outputs to pooled rows in a longer "
            "window.",
    build=build, options=Options,
    example={"mixer": {"name": "poolingformer", "window": 2, "reach": 5, "kernel": 3, "stride": 2}},
    traits=Traits(
        causality="X",
        family="SLOT",
        horizon="window + reach - 2 in steps",
        state="window D (training), window kv_heads (Dh + Dv) more (acting), "
        "(reach / stride + kernel) kv_heads (Dh + Dv)",
        causal_form="windows look back; slots count from the episode start and are seen once they are complete",
    ),
    offers=(Feature.SCORES, Feature.PRODUCTS, Feature.OUTPUTS, Feature.ROWS, Feature.KEYS, Feature.VALUES),
    formula="o_t = y_t + z_t, y = band attention, z_t = softmax(q'_t K'' / sqrt(Dh)) V'', K'', V'' pooled K', V' of y",
)  # fmt: skip
