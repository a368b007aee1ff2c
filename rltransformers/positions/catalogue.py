"""All position encodings by name."""

from rltransformers.core.spec import Spec, by_name
from rltransformers.positions import (
    alibi,
    attn_only,
    da,
    deberta,
    global_labels,
    learned,
    learned_base,
    multiplicative,
    rope,
    shaw,
    shaw_sinusoidal,
    sinusoidal,
    t5,
    trxl,
    untied,
    ut_2d,
)
from rltransformers.positions.interface import Position

NONE = Spec(
    "P0", "none", "position", "-", "No encoding: order is visible only through the causal mask.", Position,
    formula="x_t",
)  # fmt: skip
POSITIONS = by_name(
    NONE, sinusoidal, learned.LEARNED, learned_base, shaw, t5, trxl, rope, alibi,
    learned.TIMESTEP, attn_only, untied, ut_2d, deberta, shaw_sinusoidal, da,
    multiplicative, global_labels,
)  # fmt: skip
