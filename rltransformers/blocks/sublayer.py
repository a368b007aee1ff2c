"""One mixing sublayer: a mixer, and the memory whose rows it reads where it reads any.

Axes: B batch, T tokens, D model width.
"""

import torch
from jaxtyping import Int
from torch import Tensor, nn

from rltransformers.attention.layer import Attention
from rltransformers.blocks.residual import Residual
from rltransformers.core.errors import ConfigError
from rltransformers.functional.call import Call
from rltransformers.memory.interface import Cached, Compressed, LayerState, Memory, Places, Project, rolled, unrolled
from rltransformers.mixers.interface import Mixed, Mixer, RowMixer


class Sublayer(nn.Module):
    """Mixes the tokens of a stream with its past.

    Args:
        mixer: a ``RowMixer`` with a memory, or a ``StateMixer`` without one.
    """

    def __init__(self, mixer: Mixer, memory: Memory | None) -> None:
        super().__init__()
        self.mixer = mixer
        self.memory = memory

    def shapes(self, cached: Cached) -> dict[str, tuple[int, ...]]:
        """State tensors without the batch axis."""
        return self.mixer.state_shapes() | ({} if self.memory is None else self.memory.shapes(cached))

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
        own = {name: state[name] for name in mixer.state_shapes()}
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
    old = mixer.content(h, raw, exists.repeat_interleave(rate, 1))
    new = mixer.content(h, join.prepare_frozen(compressed.vectors), exists)
    weight = (call.tokens.valid() & exists.any(1, keepdim=True)).to(x.dtype)
    return ((old - new).square().mean(-1) * weight).sum() / weight.sum().clamp(min=1)


def detached(state: LayerState) -> LayerState:
    """The gradient stops where a call begins; what acting left behind becomes fit for a call that has a gradient."""
    if torch.is_grad_enabled():
        state = {name: value.clone() if value.is_inference() else value for name, value in state.items()}
    return {name: value.detach() if value.requires_grad else value for name, value in state.items()}
