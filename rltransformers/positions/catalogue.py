"""All position encodings by name."""

from rltransformers.core.spec import Spec
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
POSITIONS = {
    spec.name: spec
    for spec in (
        NONE, sinusoidal.SPEC, learned.LEARNED, learned_base.SPEC, shaw.SPEC, t5.SPEC, trxl.SPEC, rope.SPEC, alibi.SPEC,
        learned.TIMESTEP, attn_only.SPEC, untied.SPEC, ut_2d.SPEC, deberta.SPEC, shaw_sinusoidal.SPEC, da.SPEC,
        multiplicative.SPEC, global_labels.SPEC,
    )
}  # fmt: skip
