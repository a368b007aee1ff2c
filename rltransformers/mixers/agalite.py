"""AGaLiTe: the sums of GaLiTe as a few oscillators, in which values and features forget apart.

Axes: B batch, T tokens, G key-value heads, K and V widths of a head, E rows of features, m = E K, R oscillators.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor

from rltransformers.core.spec import Feature, Spec, Traits
from rltransformers.functional.call import Tokens
from rltransformers.functional.scan import scan
from rltransformers.mixers.gated_products import EPS, GATES, PAPER, GatedOptions, GatedProducts, Writes
from rltransformers.mixers.interface import Dims, LayerState

FIRST_TICK = 2
"""Time of the first token of an episode: the authors' clocks start at 1 and tick before they are read."""


@dataclass(frozen=True)
class Options(GatedOptions):
    """Options of both, and the number of oscillators.

    Attributes:
        oscillators: their number R, with frequencies from -pi to pi; more of them tell more tokens apart.
    """

    oscillators: Annotated[int, Ge(1), Le(1000)] = 8


class AGaLiTe(GatedProducts):
    """C as ``sum_j V_j K_j^T / 2 R``: values and features turn with oscillator j, so that unlike ticks cancel out."""

    turns: Float[Tensor, "period R"]

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__(dims, options)
        self.oscillators = options.oscillators
        period = 2 * max(self.oscillators - 1, 1)
        omega = [math.pi * (2 * index / max(self.oscillators - 1, 1) - 1) for index in range(self.oscillators)]
        turns = torch.tensor([[math.cos(frequency * time) for frequency in omega] for time in range(period)])
        self.register_buffer("turns", turns, persistent=False)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """V, K and s."""
        groups, rows = self.dims.kv_heads, self.oscillators
        shapes = {"value_sums": (groups, rows, self.dims.value_dim), "key_sums": (groups, rows, self.features)}
        return {**shapes, **super().state_shapes()}

    def weigh(self, writes: Writes, total: Tensor, state: LayerState, tokens: Tokens) -> tuple[Tensor, LayerState]:
        turn = self.turns[(tokens.p + FIRST_TICK) % len(self.turns)].to(total.dtype)[:, :, None, :, None]
        value, key, keep_value, keep_key = (
            x[:, :, :, None] for x in (writes.value, writes.key, writes.keep_value, writes.keep_key)
        )
        values, value_sums = scan(keep_value, turn * value, state["value_sums"], tokens)
        keys, key_sums = scan(keep_key, turn * key, state["key_sums"], tokens)
        mixed = writes.query @ keys.transpose(-1, -2) @ values / (2 * self.oscillators * total + EPS)
        return mixed, {"value_sums": value_sums, "key_sums": key_sums}


SPEC = Spec(
    id="N10", name="agalite", axis="mixer", paper=PAPER,
    summary="approximates galite by oscillators of a few frequencies, so that the state stays small",
    build=AGaLiTe, options=Options,
    traits=Traits(
        family="KERN", horizon="episode", state="G (R (E Dh + Dv) + E Dh)",
        causal_form="the time of oscillators counts from the start of the episode, in the authors' code from that"
                    " of the stream",
        single=1e-4, rounding="a query whose rectified features are all near 0 divides one small sum by another",
    ),
    offers=(Feature.KEYS,),
    formula="V_j = (1 - b) V_j + cos(w_j tau) b v, K_j = (1 - g) K_j + cos(w_j tau) g phi(k), "
    f"s = (1 - g) s + g phi(k), o_t = relu(W_o sum_j V_j (K_j phi(q)) / (2 R s phi(q) + 1e-5)), tau = p + 2, {GATES}",
)  # fmt: skip
