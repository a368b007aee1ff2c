"""Transformer-XL memory: layer inputs of the newest tokens, projected with today's weights (Dai et al. 2019)."""

from torch import Tensor, nn

from rltransformers.core.record import Record
from rltransformers.core.spec import Spec, Traits
from rltransformers.functional.windows import Tokens
from rltransformers.memory import interface
from rltransformers.memory.interface import LayerState, Past, Project


class TransformerXLMemory(nn.Module):
    """The last ``rows`` layer inputs. Gradient reaches the key projection through them, but not their own past."""

    stores_inputs = True

    def __init__(self, rows: int, width: int, key_width: int, sinks: int) -> None:
        super().__init__()
        self.rows, self.width, self.key_width, self.sinks = rows, width, key_width, sinks

    def shapes(self, cached: bool) -> dict[str, tuple[int, ...]]:
        """Inputs, and keys while acting."""
        return interface.shapes(self.rows, self.width, self.key_width, self.sinks, inputs=True, keys=cached)

    def forward(
        self, x: Tensor, state: LayerState, tokens: Tokens, project: Project, record: Record | None
    ) -> tuple[Past, LayerState]:
        """Rows seen and state after."""
        return interface.advance(state, x, project(x), tokens, project, self.rows)


def build(rows: int, width: int, key_width: int, sinks: int) -> TransformerXLMemory:
    """M1 in its window form: every token sees the same number of rows, whatever the split into calls."""
    return TransformerXLMemory(rows, width, key_width, sinks)


SPEC = Spec(
    id="M1",
    name="transformer_xl",
    axis="memory_kind",
    paper="Dai et al. 2019, arXiv 1901.02860, section 3.2",
    summary="Keeps layer inputs; keys are recomputed with today's weights, the gradient stops at them.",
    build=build,
    example={"memory_kind": "transformer_xl"},
    traits=Traits(
        horizon="memory",
        state="memory D",
        causal_form="every query sees the last memory + 1 steps instead of memory + its place in the segment",
    ),
)
