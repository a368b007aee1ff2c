"""One layer: mixing, where there is one a look at elements, then the transform, each joined to the residual stream.

Axes: B batch, T tokens, D model width.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from rltransformers.attention.cross import CrossAttention, looked_up
from rltransformers.blocks.chunks import in_chunks
from rltransformers.blocks.residual import Residual
from rltransformers.blocks.sublayer import Sublayer
from rltransformers.functional.call import NOBODY, Call, chosen
from rltransformers.functional.context import EVERY
from rltransformers.functional.dropout import dropout
from rltransformers.memory.interface import Cached, LayerState
from rltransformers.mixers.interface import Mixed, StateMixer
from rltransformers.positions.interface import Position

TRANSFORM = "ff."
"""Names of what the transform keeps begin so in the state of a layer."""


class Layer(nn.Module):
    """The order of the parts; everything else is passed in.

    Args:
        ff: position-wise, a ``StateMixer`` that reads earlier tokens too, or None where mixing is all there is.
        join_ff: None with ``ff``.
        ff_chunks: slices of the tokens that a position-wise transform takes one after the other.
        position: an encoding that acts on the input of every layer, or None.
        number: of the layer, from 1 on.
        cross: reads the elements of a token's observation between the two, or None.
        join_cross: None with ``cross``.

    Attributes:
        transform_mixes: whether the transform reads earlier tokens.
    """

    def __init__(
        self,
        mixing: Sublayer,
        ff: nn.Module | None,
        join_mixing: Residual,
        join_ff: Residual | None,
        dropout: float,
        ff_chunks: int = 1,
        position: Position | None = None,
        number: int = 1,
        cross: CrossAttention | None = None,
        join_cross: Residual | None = None,
    ) -> None:
        super().__init__()
        self.mixing = mixing
        self.ff = ff
        self.join_mixing = join_mixing
        self.join_ff = join_ff
        self.dropout = dropout
        self.ff_chunks = ff_chunks
        self.position, self.number = position, number
        self.cross, self.join_cross = cross, join_cross
        self.transform_mixes = isinstance(ff, StateMixer)

    def shapes(self, cached: Cached) -> dict[str, tuple[int, ...]]:
        """State tensors without the batch axis."""
        found = self.mixing.shapes(cached)
        if isinstance(self.ff, StateMixer):
            found |= {f"{TRANSFORM}{name}": shape for name, shape in self.ff.state_shapes().items()}
        return found

    def forward(self, x: Tensor, state: LayerState, call: Call, below: Tensor | None) -> Mixed:
        """Stream after the layer (of the wanted tokens only), its state, logits for the next layer."""
        if self.position is not None:
            x = self.position.embed_layer(x, call.tokens.p, call.tokens.timestep, self.number)
        needed = EVERY if self.transform_mixes else call.wanted
        mixed = self.mix(x, state, call if needed is call.wanted else replace(call, wanted=needed), below)
        if needed == NOBODY:
            return Mixed(mixed.out, mixed.state, mixed.logits)
        x, after = self.join_mixing.combine(chosen(x, needed), mixed.out, call.probe), mixed.state
        if self.cross is not None:
            x = self.look_up(x, needed, call)
        if self.join_ff is None:
            return Mixed(x, after, mixed.logits)
        if self.transform_mixes:
            out, own = self.transform_over_time(x, state, call)
            x, after = chosen(x, call.wanted), after | own
        else:
            out = self.transform(x)
        return Mixed(self.join_ff.combine(x, out, call.probe.at("ff")), after, mixed.logits)

    def mix(self, x: Tensor, state: LayerState, call: Call, below: Tensor | None) -> Mixed:
        """The mixing submodule alone, not yet joined."""
        mixed: Mixed = self.mixing(x, state, call, self.join_mixing, below)
        return Mixed(dropout(mixed.out, self.dropout, self.training), mixed.state, mixed.logits)

    def look_up(self, x: Tensor, wanted: slice, call: Call) -> Tensor:
        """Stream of the ``wanted`` tokens joined with what they read from the elements of their observations."""
        assert call.context is not None and self.cross is not None and self.join_cross is not None
        at, context = call.context.among(wanted, call.tokens.p.shape[1])
        if at == NOBODY:
            return x
        seeing = chosen(x, at)
        read = self.cross(self.join_cross.prepare(seeing), context.rows, context.exists)
        read = dropout(read, self.dropout, self.training)
        joined = self.join_cross.combine(seeing, read, call.probe.at("cross"))
        return looked_up(x, joined, context.exists, at)

    def transform(self, x: Tensor) -> Tensor:
        """The position-wise submodule alone, not yet joined."""
        if self.ff is None or self.join_ff is None:
            return torch.zeros_like(x)
        return dropout(in_chunks(self.ff, self.join_ff.prepare(x), self.ff_chunks), self.dropout, self.training)

    def transform_over_time(self, x: Tensor, state: LayerState, call: Call) -> tuple[Tensor, LayerState]:
        """The same of a submodule that reads earlier tokens: the wanted ones, and what it keeps."""
        assert isinstance(self.ff, StateMixer) and self.join_ff is not None
        own = {name: state[f"{TRANSFORM}{name}"] for name in self.ff.state_shapes()}
        mixed: Mixed = self.ff(self.join_ff.prepare(x), own, call)
        after = {f"{TRANSFORM}{name}": value for name, value in mixed.state.items()}
        return dropout(mixed.out, self.dropout, self.training), after
