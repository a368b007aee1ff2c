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
from rltransformers.functional.call import Call
from rltransformers.functional.prefixes import prefix_attention
from rltransformers.mixers.interface import Dims, LayerState
from rltransformers.mixers.kernel import HeadsMixer


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


class LinformerPrefix(HeadsMixer):
    """Linformer whose projections of keys and values are known for every prefix of the episode."""

    def __init__(self, dims: Dims, options: Options) -> None:
        projections = Projections(dims, options)  # drawn in front of the other weights
        super().__init__(dims)
        self.slots, self.projections = options.slots, projections
        self.shared = ("projections",) if options.sharing == "layers" else ()

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        dims = self.dims
        return {
            "projected_keys": (dims.heads, dims.head_dim, self.slots),
            "projected_values": (dims.heads, self.slots, dims.value_dim),
        }

    def read(
        self, h: Tensor, q: Tensor, k: Tensor, v: Tensor, state: LayerState, call: Call
    ) -> tuple[Tensor, LayerState]:
        columns = [each(call.tokens.p) for each in (self.projections.of_keys, self.projections.of_values)]
        parts = (each.repeat_interleave(self.dims.heads // each.shape[1], 1) for each in (k, v, *columns))
        k, v, of_keys, of_values = parts
        return prefix_attention(q / math.sqrt(q.shape[-1]), k, v, of_keys, of_values, state, call.tokens)


SPEC = Spec(
    id="S8-prefix", name="linformer_prefix", axis="mixer", paper="Wang et al. 2020, arXiv 2006.04768, equation 7",
    summary="All keys and values of the episode so far are projected to a fixed number of them.",
    build=LinformerPrefix, options=Options, example={"mixer": {"name": "linformer_prefix", "slots": 5, "max_len": 9}},
    traits=Traits(
        causality="X", family="KERN", horizon="episode", state="H slots (Dh + Dv)",
        causal_form="E and F project the tokens up to the query; positions behind max_len use their columns again",
    ),
    offers=(Feature.KEYS,),
    formula="o_t = softmax(q_t K'_t / sqrt(Dh)) V'_t, K'_t = sum_(s <= t) E_(p_s) k_s, V'_t = sum_(s <= t) F_(p_s) v_s",
)  # fmt: skip
