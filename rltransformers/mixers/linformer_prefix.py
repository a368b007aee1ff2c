"""Linformer over prefixes: keys and values of the episode are added up in the columns of their positions.

Axes: B batch, T tokens, H heads, G key-value heads (1 where they share), c slots, n positions, D width, Dh and Dv
widths of a key and of a value.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rltransformers.core.spec import Feature, Size, Spec, Traits
from rltransformers.functional.call import Call, chosen
from rltransformers.functional.prefixes import prefix_attention
from rltransformers.mixers.interface import Dims, Mixed, StateMixer


@dataclass(frozen=True)
class Options:
    """Options of Linformer over prefixes.

    Attributes:
        slots: projected keys and values.
        max_len: positions with columns of their own; later positions of an episode use them again, from the first one.
        sharing: of E and F: none, by the heads of a layer, by keys and values, too (E = F), or by all layers with the
            same options.
    """

    slots: Size = 32
    max_len: Size = 1024
    sharing: Literal["none", "heads", "kv", "layers"] = "heads"


class Columns(nn.Module):
    """E, or F: one number per position, head and slot; starts as N(0, 1 / n)."""

    def __init__(self, positions: int, groups: int, slots: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(positions, groups, slots) * positions**-0.5)

    def forward(self, p: Int[Tensor, "B T"]) -> Float[Tensor, "B G T c"]:
        """The columns of positions; behind the last one they begin again."""
        return self.weight[p % self.weight.shape[0]].transpose(1, 2)


class Projections(nn.Module):
    """E for keys and F for values, or one for both."""

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        sizes = options.max_len, dims.kv_heads if options.sharing == "none" else 1, options.slots
        self.of_keys = Columns(*sizes)
        self.of_values = self.of_keys if options.sharing in ("kv", "layers") else Columns(*sizes)


class LinformerPrefix(StateMixer):
    """Linformer whose projections of keys and values are known for every prefix of the episode."""

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        self.dims, self.slots, self.projections = dims, options.slots, Projections(dims, options)
        self.shared = ("projections",) if options.sharing == "layers" else ()
        self.widths = [dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim, dims.kv_heads * dims.value_dim]
        self.project = dims.projection(dims.width, sum(self.widths))
        self.out = dims.projection(dims.heads * dims.value_dim, dims.width)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """The projected keys and values of the episode."""
        dims = self.dims
        return {
            "projected_keys": (dims.heads, dims.head_dim, self.slots),
            "projected_values": (dims.heads, self.slots, dims.value_dim),
        }

    def forward(self, h: Float[Tensor, "B T D"], state: dict[str, Tensor], call: Call) -> Mixed:
        heads, groups = self.dims.heads, self.dims.kv_heads
        parts = zip(self.project(h).split(self.widths, -1), (heads, groups, groups), strict=True)
        columns = [each(call.tokens.p) for each in (self.projections.of_keys, self.projections.of_values)]
        q, *rest = [part.unflatten(-1, (count, -1)).transpose(1, 2) for part, count in parts]
        k, v, of_keys, of_values = (each.repeat_interleave(heads // each.shape[1], 1) for each in (*rest, *columns))
        mixed, state = prefix_attention(q / math.sqrt(q.shape[-1]), k, v, of_keys, of_values, state, call.tokens)
        mixed = mixed.transpose(1, 2).flatten(2).to(h.dtype)
        return Mixed(self.out(chosen(mixed, call.wanted)), state)


SPEC = Spec(
    id="S8-prefix",
    name="linformer_prefix",
    axis="mixer",
    paper="Wang et al. 2020, arXiv 2006.04768, equation 7",
    summary="All keys and values of the episode so far are projected to a fixed number of them.",
    build=LinformerPrefix,
    options=Options,
    example={"mixer": {"name": "linformer_prefix", "slots": 5, "max_len": 9}},
    traits=Traits(
        causality="X",
        family="KERN",
        horizon="episode",
        state="H slots (Dh + Dv)",
        causal_form="E and F project the tokens up to the query; positions behind max_len use their columns again",
    ),
    offers=(Feature.KEYS,),
    formula="o_t = softmax(q_t K'_t / sqrt(Dh)) V'_t, K'_t = sum_(s <= t) E_(p_s) k_s, V'_t = sum_(s <= t) F_(p_s) v_s",
)
