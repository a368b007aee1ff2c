"""One layer: mixing, then the position-wise transform, each joined to the residual stream.

Axes: B batch, T tokens, D model width.
"""

from torch import Tensor, nn

from rltransformers.attention.interface import EVERY, chosen
from rltransformers.blocks.mixing import Mixing
from rltransformers.blocks.residual import Residual
from rltransformers.core.record import Record
from rltransformers.functional.dropout import dropout
from rltransformers.functional.windows import Tokens
from rltransformers.memory.interface import LayerState


class Layer(nn.Module):
    """The order of the parts; everything else is passed in."""

    def __init__(self, mixing: Mixing, ff: nn.Module, join_mixing: Residual, join_ff: Residual, dropout: float) -> None:
        super().__init__()
        self.mixing = mixing
        self.ff = ff
        self.join_mixing = join_mixing
        self.join_ff = join_ff
        self.dropout = dropout

    def forward(
        self,
        x: Tensor,
        state: LayerState,
        tokens: Tokens,
        carry: Tensor | None,
        record: Record | None,
        name: str,
        wanted: slice = EVERY,
    ) -> tuple[Tensor, LayerState, Tensor | None]:
        """Stream after the layer (of the ``wanted`` tokens only), its state, logits for the next layer."""
        y, after, carry = self.mix(x, state, tokens, carry, record, name, wanted)
        x = self.join_mixing.combine(chosen(x, wanted), y, record, name)
        return self.join_ff.combine(x, self.transform(x), record, f"{name}/ff"), after, carry

    def mix(
        self,
        x: Tensor,
        state: LayerState,
        tokens: Tokens,
        carry: Tensor | None,
        record: Record | None,
        name: str,
        wanted: slice = EVERY,
    ) -> tuple[Tensor, LayerState, Tensor | None]:
        """The mixing submodule alone, not yet joined."""
        y, after, carry = self.mixing(x, state, tokens, self.join_mixing, carry, record, name, wanted)
        return dropout(y, self.dropout, self.training), after, carry

    def transform(self, x: Tensor) -> Tensor:
        """The position-wise submodule alone, not yet joined."""
        return dropout(self.ff(self.join_ff.prepare(x)), self.dropout, self.training)
