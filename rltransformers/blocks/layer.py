"""One layer: mixing, where there is one a look at elements, then the transform, each joined to the residual stream.

Axes: B batch, T tokens, D model width.
"""

from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rltransformers.attention.cross import CrossAttention, looked_up
from rltransformers.attention.layer import Attention
from rltransformers.blocks.feedforward import in_chunks
from rltransformers.blocks.residual import Residual
from rltransformers.core.errors import ConfigError
from rltransformers.functional.call import EVERY, NOBODY, Call, chosen
from rltransformers.functional.modules import dropout
from rltransformers.memory.interface import Compressed, Form, LayerState, Memory, Places, Project, rolled, unrolled
from rltransformers.mixers.interface import Mixed, Mixer, RowMixer, StateMixer
from rltransformers.positions.interface import Position

TRANSFORM = "ff."
"""Names of what the transform keeps begin so in the state of a layer."""


class Sublayer(nn.Module):
    """Mixes the tokens of a stream with its past.

    Args:
        mixer: a ``RowMixer`` with a memory, or a ``StateMixer`` without one.
    """

    def __init__(self, mixer: Mixer, memory: Memory | None) -> None:
        super().__init__()
        self.mixer = mixer
        self.memory = memory
        self.state_names = tuple(mixer.state_shapes())  # of the mixer

    def shapes(self, form: Form) -> dict[str, tuple[int, ...]]:
        """State tensors without the batch axis."""
        return self.mixer.state_shapes() | ({} if self.memory is None else self.memory.shapes(form))

    def tables(self) -> dict[str, Tensor]:
        """Tables that depend on weights and sizes alone."""
        if not isinstance(self.mixer, RowMixer) or self.memory is None:
            return {}
        return self.mixer.tables(self.memory.reach - self.mixer.stored)

    def table_sources(self) -> list[nn.Module]:
        """The modules whose weights ``tables`` depends on."""
        return self.mixer.table_sources() if isinstance(self.mixer, RowMixer) else []

    def forward(self, x: Tensor, state: LayerState, call: Call, join: Residual, below: Tensor | None) -> Mixed:
        """The wanted tokens, mixed; the state after all of them; logits for the layer above."""
        h, mixer = join.prepare(x), self.mixer
        mixed: Mixed
        if not isinstance(mixer, RowMixer) or self.memory is None:
            mixed = mixer(h, state, call)
            return mixed
        query, keys = mixer.queries_and_keys(h)
        if mixer.placed:
            query, keys = mixer.placed_queries(query, call.tokens.p), mixer.placed_keys(keys, call.tokens.p)
        seen = self.memory(x, keys, state, call, self.project(join))
        if call.probe.listens and seen.compressed is not None:
            call.probe.loss("compression", attention_difference(mixer, join, x, seen.compressed, call))
        own = {name: state[name] for name in self.state_names}
        mixed = mixer(h, query, seen.past, own, call, below)
        return Mixed(mixed.out, seen.state | mixed.state, mixed.logits)

    def project(self, join: Residual) -> Project:
        """From layer inputs to key rows, with today's weights."""
        mixer = self.mixer
        assert isinstance(mixer, RowMixer)

        def keys_of(rows: Tensor, places: Places) -> Tensor:
            # A product with a bias rounds in another way for rows that are cut from longer ones.
            keys = mixer.keys(join.prepare(rows).contiguous())
            return mixer.placed_keys(keys, places().clamp(min=0)) if mixer.placed else keys

        return keys_of

    def with_keys(self, state: LayerState, join: Residual, before: Int[Tensor, " B"]) -> LayerState:
        """Acting form of a training state: rings of the remembered inputs and of their keys under today's weights.

        Args:
            before: position of the last token.
        """
        if self.memory is None:
            return state
        check_inputs(state, self.memory)
        return rolled(self.memory.with_keys(state, self.project(join), before), self.memory.slots)

    def without_keys(self, state: LayerState, clock: Tensor | None) -> LayerState:
        """Training form: layer inputs only, oldest first."""
        if self.memory is None:
            return state
        state = self.in_order(state, clock)
        check_inputs(state, self.memory)
        return self.memory.without_keys(state)

    def in_order(self, state: LayerState, clock: Tensor | None) -> LayerState:
        """The state with its rings unrolled."""
        if self.memory is None or clock is None:
            return state
        return unrolled(state, clock, self.memory.rows)

    def in_rings(self, state: LayerState) -> LayerState:
        """Rows with keys as the rings of a clock that stands at 0."""
        return state if self.memory is None else rolled(state, self.memory.slots)


def check_inputs(state: LayerState, memory: Memory) -> None:
    """Raise ConfigError unless the state holds the layer inputs that are needed."""
    if memory.stores_inputs and "hidden" not in state:
        raise ConfigError('the state holds keys in place of layer inputs; begin with cached=True instead of "only"')


def attention_difference(mixer: Mixer, join: Residual, x: Tensor, compressed: Compressed, call: Call) -> Tensor:
    """Mean squared difference of what tokens read from raw and from compressed inputs (X6, attention reconstruction).

    Rae et al. 2019 (arXiv 1911.05507, algorithm 2): content only; queries, weights and norms are constants, so that
    only the compression learns from it.
    """
    assert isinstance(mixer, Attention)
    rate = compressed.blocks.shape[2]
    exists = compressed.exists
    if not exists.any():
        return x.new_zeros(())
    h, raw = join.prepare_frozen(x.detach()), join.prepare_frozen(compressed.blocks.flatten(1, 2))
    old = read_frozen(mixer, h, raw, exists.repeat_interleave(rate, 1))
    new = read_frozen(mixer, h, join.prepare_frozen(compressed.vectors), exists)
    weight = (call.tokens.valid() & exists.any(1, keepdim=True)).to(x.dtype)
    return ((old - new).square().mean(-1) * weight).sum() / weight.sum().clamp(min=1)


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

    def shapes(self, form: Form) -> dict[str, tuple[int, ...]]:
        """State tensors without the batch axis."""
        found = self.mixing.shapes(form)
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
        return Mixed(
            self.join_ff.combine(x, out, call.probe.at("ff") if call.probe.listens else call.probe), after, mixed.logits
        )

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


def read_frozen(
    mixer: Attention, h: Float[Tensor, "B T D"], rows: Float[Tensor, "B S D"], seen: Bool[Tensor, "B S"]
) -> Float[Tensor, "B T O"]:
    """Values that queries of ``h`` read from ``rows`` by content alone, where ``seen``, with frozen weights."""
    weight, given, score = mixer.project.weight.detach(), mixer.project.bias, mixer.score
    bias = weight.new_zeros(len(weight)) if given is None else given.detach()
    frozen = {name: value.detach() for name, value in score.named_parameters()}
    prepare = (lambda heads: heads) if mixer.chooser is None else mixer.chooser.prepare
    values: Tensor = torch.func.functional_call(score, frozen, (weight, bias, h, rows, seen, prepare))
    return values


def detached(state: LayerState) -> LayerState:
    """Detach the state; clone inference-mode tensors so that autograd accepts them."""
    if torch.is_grad_enabled():
        state = {name: value.clone() if value.is_inference() else value for name, value in state.items()}
    return {name: value.detach() if value.requires_grad else value for name, value in state.items()}
