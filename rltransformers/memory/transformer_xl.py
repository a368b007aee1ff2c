"""Transformer-XL memory: layer inputs of the newest tokens, projected with today's weights (Dai et al. 2019)."""

from rltransformers.core.spec import Spec, Traits
from rltransformers.memory.interface import MemoryOptions, RowMemory


def build(rows: int, width: int, key_width: int, sinks: int, tokens_per_step: int, options: MemoryOptions) -> RowMemory:
    """M1 in its window form: every token sees the same number of rows, whatever the split into calls.

    Gradient reaches the key projection through the rows, but not their own past.
    """
    return RowMemory(rows, width, key_width, sinks, tokens_per_step, stores_inputs=True)


SPEC = Spec(
    id="M1",
    name="transformer_xl",
    axis="memory_kind",
    paper="Dai et al. 2019, arXiv 1901.02860, section 3.2",
    summary="Keeps layer inputs; keys are recomputed with today's weights, the gradient stops at them.",
    build=build,
    options=MemoryOptions,
    example={"memory_kind": "transformer_xl"},
    traits=Traits(
        horizon="memory",
        state="memory D",
        causal_form="every query sees the last memory + 1 steps instead of memory + its place in the segment",
    ),
    formula="k, v of [SG(inputs of the last `memory` steps); own inputs]",
)
