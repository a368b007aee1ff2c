"""One layer: mixing, then the position-wise transform, each joined to the residual stream.

Axes: B batch, T tokens, D model width.
"""

from torch import Tensor, nn

from rltransformers.blocks.residual import Residual
from rltransformers.blocks.sublayer import Sublayer
from rltransformers.functional.call import Call, chosen
from rltransformers.functional.dropout import dropout
from rltransformers.memory.interface import LayerState
from rltransformers.mixers.interface import Mixed


class Layer(nn.Module):
    """The order of the parts; everything else is passed in."""

    def __init__(
        self, mixing: Sublayer, ff: nn.Module, join_mixing: Residual, join_ff: Residual, dropout: float
    ) -> None:
        super().__init__()
        self.mixing = mixing
        self.ff = ff
        self.join_mixing = join_mixing
        self.join_ff = join_ff
        self.dropout = dropout

    def forward(self, x: Tensor, state: LayerState, call: Call, below: Tensor | None) -> Mixed:
        """Stream after the layer (of the wanted tokens only), its state, logits for the next layer."""
        mixed = self.mix(x, state, call, below)
        x = self.join_mixing.combine(chosen(x, call.wanted), mixed.out, call.probe)
        out = self.join_ff.combine(x, self.transform(x), call.probe.at("ff"))
        return Mixed(out, mixed.state, mixed.logits)

    def mix(self, x: Tensor, state: LayerState, call: Call, below: Tensor | None) -> Mixed:
        """The mixing submodule alone, not yet joined."""
        mixed: Mixed = self.mixing(x, state, call, self.join_mixing, below)
        return Mixed(dropout(mixed.out, self.dropout, self.training), mixed.state, mixed.logits)

    def transform(self, x: Tensor) -> Tensor:
        """The position-wise submodule alone, not yet joined."""
        return dropout(self.ff(self.join_ff.prepare(x)), self.dropout, self.training)
