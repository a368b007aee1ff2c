"""Plain key/value cache: projections as they were computed, no gradient through them."""

from torch import Tensor, nn

from rltransformers.core.record import Record
from rltransformers.core.spec import Spec, Traits
from rltransformers.functional.windows import Tokens
from rltransformers.memory import interface
from rltransformers.memory.interface import LayerState, Past, Project


class KeyValueCache(nn.Module):
    """The last ``rows`` key rows."""

    stores_inputs = False

    def __init__(self, rows: int, width: int, key_width: int, sinks: int) -> None:
        super().__init__()
        self.rows, self.width, self.key_width, self.sinks = rows, width, key_width, sinks

    def shapes(self, cached: bool) -> dict[str, tuple[int, ...]]:
        """Keys only, in training as while acting."""
        return interface.shapes(self.rows, self.width, self.key_width, self.sinks, inputs=False, keys=True)

    def forward(
        self, x: Tensor, state: LayerState, tokens: Tokens, project: Project, record: Record | None
    ) -> tuple[Past, LayerState]:
        """Rows seen and state after."""
        return interface.advance(state, x, project(x), tokens, project, self.rows)


def build(rows: int, width: int, key_width: int, sinks: int) -> KeyValueCache:
    """M0 with a hard cap of ``rows`` tokens, oldest first out."""
    return KeyValueCache(rows, width, key_width, sinks)


SPEC = Spec(
    id="M0",
    name="cache",
    axis="memory_kind",
    paper="-",
    summary="Keeps keys and values as computed; training through it reaches no older weights.",
    build=build,
    example={"memory_kind": "cache"},
    traits=Traits(horizon="memory", state="memory kv_heads (Dh + Dv)"),
)
