"""One layer: mixing, a look at elements, transform, joined to the stream. Axes: B batch, T tokens, D model width."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rltransformers.attention.cross import CrossAttention, looked_up
from rltransformers.attention.layer import Attention
from rltransformers.blocks.feedforward import in_slices
from rltransformers.blocks.residual import Residual
from rltransformers.core.errors import ConfigError
from rltransformers.functional.call import EVERY, NOBODY, Call, chosen
from rltransformers.functional.modules import dropout
from rltransformers.memory.interface import Compressed, Form, Places, RowMemory
from rltransformers.mixers.interface import LayerState, Mixed, Mixer, RowMixer, StateMixer
from rltransformers.positions.interface import Position

TRANSFORM = "ff."
"""Names of what the transform keeps begin so in the state of a layer."""


class Sublayer(nn.Module):
    """What mixes the tokens of a stream with its past: a ``RowMixer`` with a memory, or a ``StateMixer`` without."""

    def __init__(self, mixer: Mixer, memory: RowMemory | None) -> None:
        super().__init__()
        self.mixer, self.memory = mixer, memory
        self.shapes = mixer.state_shapes()

    def tables(self) -> dict[str, Tensor]:
        if not isinstance(self.mixer, RowMixer) or self.memory is None:
            return {}
        return self.mixer.tables(self.memory.reach - self.mixer.stored)


def attention_difference(
    mixer: Mixer, join: Residual, x: Tensor, compressed: Compressed, call: Call
) -> tuple[Tensor, Tensor]:
    """Mean squared difference of what tokens read from raw and from compressed inputs, and the number of these tokens.

    Attention reconstruction, Rae et al. 2019 (arXiv 1911.05507, algorithm 2): content only; queries, weights and norms
    are constants, so that only the compression learns from it.
    """
    assert isinstance(mixer, Attention)
    rate, exists = compressed.blocks.shape[2], compressed.exists
    if not exists.any():
        return x.new_zeros(()), x.new_zeros(())
    h, raw = join.prepare_frozen(x.detach()), join.prepare_frozen(compressed.blocks.flatten(1, 2))
    old = read_frozen(mixer, h, raw, exists.repeat_interleave(rate, 1))
    new = read_frozen(mixer, h, join.prepare_frozen(compressed.vectors), exists)
    weight = (call.tokens.valid() & exists.any(1, keepdim=True)).to(x.dtype)
    number = weight.sum()
    return ((old - new).square().mean(-1) * weight).sum() / number.clamp(min=1), number


class Layer(nn.Module):
    """The order of the parts; everything else is passed in.

    Args:
        ff: position-wise, a ``StateMixer`` that reads earlier tokens too (``transform_mixes``), or None.
        ff_chunks: slices of the tokens that a position-wise transform takes one after the other.
        position: an encoding that acts on the input of every layer.
        number: of the layer, from 1 on.
        cross: reads the elements of a token's observation between mixing and transform.
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
        self.mixing, self.ff = mixing, ff
        self.join_mixing, self.join_ff = join_mixing, join_ff
        self.dropout, self.ff_chunks = dropout, ff_chunks
        self.position, self.number = position, number
        self.cross, self.join_cross = cross, join_cross
        self.transform_mixes = isinstance(ff, StateMixer)

    def shapes(self, form: Form) -> dict[str, tuple[int, ...]]:
        """State tensors without the batch axis."""
        shapes = dict(self.mixing.mixer.state_shapes())
        if self.mixing.memory is not None:
            shapes |= self.mixing.memory.shapes(form)
        if isinstance(self.ff, StateMixer):
            shapes |= {f"{TRANSFORM}{name}": shape for name, shape in self.ff.state_shapes().items()}
        return shapes

    def forward(self, x: Tensor, state: LayerState, call: Call, below: Tensor | None) -> Mixed:
        """Stream after the layer (of the wanted tokens only), its state, logits for the next layer."""
        if self.position is not None:
            x = self.position.embed_layer(x, call.tokens.p, call.tokens.timestep, self.number)
        needed = EVERY if self.transform_mixes else call.wanted
        mixed = self.mix(x, state, call if needed is call.wanted else replace(call, wanted=needed), below)
        if needed == NOBODY:
            return mixed
        x, after = self.join_mixing.combine(chosen(x, needed), mixed.out, call.probe), mixed.state
        if self.cross is not None:
            x = self.look_up(x, needed, call)
        if self.join_ff is None:
            return Mixed(x, after, mixed.logits)
        if self.transform_mixes:
            transformed = self.transform_over_time(x, state, call)
            x, out, after = chosen(x, call.wanted), transformed.out, after | transformed.state
        else:
            out = self.transform(x)
        return Mixed(self.join_ff.combine(x, out, call.probe.at("ff")), after, mixed.logits)

    def mix(self, x: Tensor, state: LayerState, call: Call, below: Tensor | None) -> Mixed:
        """The mixing submodule alone, not yet joined: the wanted tokens, the state, logits for the next layer."""
        h, mixer, memory = self.join_mixing.prepare(x), self.mixing.mixer, self.mixing.memory
        mixed: Mixed
        if not isinstance(mixer, RowMixer) or memory is None:
            mixed = check_mixed(mixer(h, state, call), mixer, self.mixing.shapes)
            after = mixed.state
        else:
            query, keys = mixer.queries_and_keys(h)
            if mixer.placed:
                query, keys = mixer.placed_queries(query, call.tokens.p), mixer.placed_keys(keys, call.tokens.p)
            seen = memory(x, keys, state, call, self.keys_of)
            if call.probe.listens and seen.compressed is not None:
                difference, number = attention_difference(mixer, self.join_mixing, x, seen.compressed, call)
                call.probe.loss("compression", difference, number)
            own = {name: state[name] for name in self.mixing.shapes}
            mixed = check_mixed(mixer(h, query, seen.past, own, call, below), mixer, self.mixing.shapes)
            after = seen.state | mixed.state
        return Mixed(self.dropped(mixed.out), after, mixed.logits)

    def keys_of(self, rows: Tensor, places: Places) -> Tensor:
        """Key rows of layer inputs at their places, with today's weights: the ``Project`` of memories."""
        mixer = self.mixing.mixer
        assert isinstance(mixer, RowMixer)
        # A product with a bias rounds in another way for rows that are cut from longer ones.
        keys = mixer.keys(self.join_mixing.prepare(rows).contiguous())
        return mixer.placed_keys(keys, places().clamp(min=0)) if mixer.placed else keys

    def dropped(self, out: Tensor) -> Tensor:
        return dropout(out, self.dropout) if self.dropout and self.training else out

    def look_up(self, x: Tensor, wanted: slice, call: Call) -> Tensor:
        """Stream of the ``wanted`` tokens joined with what they read from the elements of their observations."""
        assert call.context is not None and self.cross is not None and self.join_cross is not None
        at, context = call.context.among(wanted, call.tokens.p.shape[1])
        if at == NOBODY:
            return x
        seeing = chosen(x, at)
        read = self.cross(self.join_cross.prepare(seeing), context.rows, context.exists)
        joined = self.join_cross.combine(seeing, self.dropped(read), call.probe.at("cross"))
        return looked_up(x, joined, context.exists, at)

    def transform(self, x: Tensor) -> Tensor:
        """The position-wise submodule alone, not yet joined."""
        assert self.ff is not None and self.join_ff is not None
        h = self.join_ff.prepare(x)
        return self.dropped(self.ff(h) if self.ff_chunks == 1 else in_slices(self.ff, h, self.ff_chunks))

    def transform_over_time(self, x: Tensor, state: LayerState, call: Call) -> Mixed:
        """The same of a submodule that reads earlier tokens: the wanted ones, and what it keeps."""
        assert isinstance(self.ff, StateMixer) and self.join_ff is not None
        shapes = self.ff.state_shapes()
        own = {name: state[f"{TRANSFORM}{name}"] for name in shapes}
        mixed = check_mixed(self.ff(self.join_ff.prepare(x), own, call), self.ff, shapes)
        return Mixed(self.dropped(mixed.out), {f"{TRANSFORM}{name}": value for name, value in mixed.state.items()})


def check_mixed(mixed: Any, mixer: Mixer, shapes: Mapping[str, tuple[int, ...]]) -> Mixed:
    """What a mixer returned; ConfigError unless its state has these ``shapes``, batch axis aside."""
    if not isinstance(mixed, Mixed):
        raise ConfigError(
            f"mixer {type(mixer).__name__} returned a {type(mixed).__name__}; let it return Mixed(out, state)"
        )
    found = {name: value.shape[1:] for name, value in mixed.state.items()}
    if found != shapes:
        sizes = {name: tuple(shape) for name, shape in found.items()}
        raise ConfigError(
            f"mixer {type(mixer).__name__} returned a state with {sizes}, but its state_shapes() are {shapes} (without "
            "the batch axis); let it return all of them and nothing else"
        )
    return mixed


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
