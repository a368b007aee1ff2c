"""One sequence-mixing sublayer with its memory: a window mixer over remembered rows, or a mixer with its own state.

Axes: B batch, T tokens, D model width.
"""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from rltransformers.attention.interface import EVERY, Slots, StateMixer, WindowMixer
from rltransformers.attention.kernels.softmax import SoftmaxAttention
from rltransformers.blocks.residual import Residual
from rltransformers.core.errors import ConfigError
from rltransformers.core.record import Record
from rltransformers.functional.windows import Tokens
from rltransformers.memory.interface import Cached, Compressed, LayerState, Memory

Prepare = Callable[[Tensor], Tensor]


class WindowMixing(nn.Module):
    """Attention over ``[memory ; tokens]``."""

    def __init__(self, mixer: nn.Module, memory: nn.Module) -> None:
        super().__init__()
        self.mixer = mixer
        self.memory = memory

    def shapes(self, cached: Cached) -> dict[str, tuple[int, ...]]:
        """State tensors without the batch axis."""
        return cast(Memory, self.memory).shapes(cached)

    def forward(
        self,
        x: Tensor,
        state: LayerState,
        tokens: Tokens,
        join: Residual,
        carry: Tensor | None,
        record: Record | None,
        name: str,
        wanted: slice = EVERY,
    ) -> tuple[Tensor, LayerState, Tensor | None]:
        """Mixed tokens (of the ``wanted`` ones only), state after them, logits for the next layer."""
        mixer = cast(WindowMixer, self.mixer)
        h = join.prepare(x)
        query, keys = mixer.queries_and_keys(h)
        past, after = self.memory(x, keys, state, tokens, lambda rows: mixer.keys(join.prepare(rows)), record)
        slots = None
        if past.slots is not None:
            slots = Slots(mixer.keys(join.prepare(past.slots)), past.slot_distance, past.slot_visible)
        if record is not None and past.compressed is not None:
            record.add_loss("compression", attention_difference(self.mixer, join, x, past.compressed, tokens))
        out, carry = mixer(
            h,
            query,
            past.rows,
            tokens,
            slots=slots,
            sinks=past.sinks,
            carry=carry,
            wanted=wanted,
            record=record,
            name=name,
        )
        return out, after, carry

    def with_keys(self, state: LayerState, prepare: Prepare) -> LayerState:
        """Acting form: keys of the remembered inputs, projected with today's weights."""
        mixer = cast(WindowMixer, self.mixer)
        if not cast(Memory, self.memory).stores_inputs:
            return state
        check_inputs(state)
        projected = {"keys": mixer.keys(prepare(state["hidden"]))}
        if "sinks" in state:
            projected["sink_keys"] = mixer.keys(prepare(state["sinks"]))
        return {**state, **projected}

    def without_keys(self, state: LayerState) -> LayerState:
        """Training form: layer inputs only."""
        if not cast(Memory, self.memory).stores_inputs:
            return state
        check_inputs(state)
        return {name: value for name, value in state.items() if name not in ("keys", "sink_keys")}

    def constrain_(self) -> None:
        """Bring bounded parameters back into their range."""
        span = getattr(self.mixer, "span", None)
        if span is not None:
            span.constrain_()


class StateMixing(nn.Module):
    """A mixer whose state is its memory."""

    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.mixer = mixer

    def shapes(self, cached: Cached) -> dict[str, tuple[int, ...]]:
        """State tensors without the batch axis; the same in training and acting."""
        return cast(StateMixer, self.mixer).state_shapes()

    def forward(
        self,
        x: Tensor,
        state: LayerState,
        tokens: Tokens,
        join: Residual,
        carry: Tensor | None,
        record: Record | None,
        name: str,
        wanted: slice = EVERY,
    ) -> tuple[Tensor, LayerState, Tensor | None]:
        """Mixed tokens (of the ``wanted`` ones only), state after them, nothing for the next layer."""
        out, after = self.mixer(join.prepare(x), state, tokens, record=record, name=name)
        return out[:, wanted], after, None

    def with_keys(self, state: LayerState, prepare: Prepare) -> LayerState:
        """The state itself."""
        return state

    def without_keys(self, state: LayerState) -> LayerState:
        """The state itself."""
        return state

    def constrain_(self) -> None:
        """Nothing is bounded."""


Mixing = WindowMixing | StateMixing


def check_inputs(state: LayerState) -> None:
    """Refuse a state that was begun with ``cached="only"`` where layer inputs are needed."""
    if "hidden" not in state:
        raise ConfigError('the state holds keys in place of layer inputs; begin with cached=True instead of "only"')


def attention_difference(mixer: nn.Module, join: Residual, x: Tensor, compressed: Compressed, tokens: Tokens) -> Tensor:
    """Mean squared difference of what tokens read from raw and from compressed inputs (X6, attention reconstruction).

    Rae et al. 2019 (arXiv 1911.05507, algorithm 2): content only; queries, weights and norms are constants, so that
    only the compression learns from it.
    """
    assert isinstance(mixer, SoftmaxAttention)
    rate = compressed.blocks.shape[2]
    exists = compressed.exists
    if not exists.any():
        return x.new_zeros(())
    h, raw = join.prepare_frozen(x.detach()), join.prepare_frozen(compressed.blocks.flatten(1, 2))
    old = mixer.content(h, raw, exists.repeat_interleave(rate, 1))
    new = mixer.content(h, join.prepare_frozen(compressed.vectors), exists)
    weight = (tokens.valid() & exists.any(1, keepdim=True)).to(x.dtype)
    return ((old - new).square().mean(-1) * weight).sum() / weight.sum().clamp(min=1)


def detached(state: LayerState) -> LayerState:
    """The gradient stops where a call begins; what acting left behind becomes fit for a call that has a gradient."""
    if torch.is_grad_enabled():
        state = {name: value.clone() if value.is_inference() else value for name, value in state.items()}
    return {name: value.detach() if value.requires_grad else value for name, value in state.items()}
