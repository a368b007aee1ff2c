"""Plain key/value cache: projections as they were computed, no gradient through them."""

from rltransformers.core.spec import Feature, Spec, Traits
from rltransformers.memory.interface import MemoryOptions, RowMemory


def build(rows: int, width: int, key_width: int, sinks: int, tokens_per_step: int, options: MemoryOptions) -> RowMemory:
    """M0 with a hard cap of ``rows`` tokens, oldest first out."""
    return RowMemory(rows, width, key_width, sinks, tokens_per_step, stores_inputs=False)


SPEC = Spec(
    id="M0",
    name="cache",
    axis="memory_kind",
    paper="-",
    summary="Keeps keys and values as computed; training through it reaches no older weights.",
    build=build,
    options=MemoryOptions,
    example={"memory_kind": "cache"},
    traits=Traits(horizon="memory", state="memory kv_heads (Dh + Dv)"),
    needs=(Feature.ROWS,),
    formula="k, v of the last `memory` steps, as they were computed",
)
