"""One sequence-mixing sublayer with its memory: a window mixer over remembered rows, or a mixer with its own state.

Axes: B batch, T tokens, D model width.
"""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from rltransformers.attention.interface import Slots, StateMixer, WindowMixer
from rltransformers.core.record import Record
from rltransformers.functional.windows import Tokens
from rltransformers.memory.interface import LayerState, Memory

Prepare = Callable[[Tensor], Tensor]


class WindowMixing(nn.Module):
    """Attention over ``[memory ; tokens]``."""

    def __init__(self, mixer: nn.Module, memory: nn.Module) -> None:
        super().__init__()
        self.mixer = mixer
        self.memory = memory

    def shapes(self, cached: bool) -> dict[str, tuple[int, ...]]:
        """State tensors without the batch axis."""
        return cast(Memory, self.memory).shapes(cached)

    def forward(
        self,
        x: Tensor,
        state: LayerState,
        tokens: Tokens,
        prepare: Prepare,
        carry: Tensor | None,
        record: Record | None,
        name: str,
    ) -> tuple[Tensor, LayerState, Tensor | None]:
        """Mixed tokens, state after them, logits for the next layer."""
        mixer = cast(WindowMixer, self.mixer)
        past, after = self.memory(x, state, tokens, lambda rows: mixer.keys(prepare(rows)), record)
        slots = None
        if past.slots is not None:
            slots = Slots(mixer.keys(prepare(past.slots)), past.slot_distance, past.slot_visible)
        out, carry = mixer(
            prepare(x), past.rows, tokens, slots=slots, sinks=past.sinks, carry=carry, record=record, name=name
        )
        return out, after, carry

    def with_keys(self, state: LayerState, prepare: Prepare) -> LayerState:
        """Acting form: keys of the remembered inputs, projected with today's weights."""
        mixer = cast(WindowMixer, self.mixer)
        if not cast(Memory, self.memory).stores_inputs:
            return state
        projected = {"keys": mixer.keys(prepare(state["hidden"]))}
        if "sinks" in state:
            projected["sink_keys"] = mixer.keys(prepare(state["sinks"]))
        return {**state, **projected}

    def without_keys(self, state: LayerState) -> LayerState:
        """Training form: layer inputs only."""
        if not cast(Memory, self.memory).stores_inputs:
            return state
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

    def shapes(self, cached: bool) -> dict[str, tuple[int, ...]]:
        """State tensors without the batch axis; the same in training and acting."""
        return cast(StateMixer, self.mixer).state_shapes()

    def forward(
        self,
        x: Tensor,
        state: LayerState,
        tokens: Tokens,
        prepare: Prepare,
        carry: Tensor | None,
        record: Record | None,
        name: str,
    ) -> tuple[Tensor, LayerState, Tensor | None]:
        """Mixed tokens, state after them, nothing for the next layer."""
        out, after = self.mixer(prepare(x), state, tokens, record=record, name=name)
        return out, after, None

    def with_keys(self, state: LayerState, prepare: Prepare) -> LayerState:
        """The state itself."""
        return state

    def without_keys(self, state: LayerState) -> LayerState:
        """The state itself."""
        return state

    def constrain_(self) -> None:
        """Nothing is bounded."""


Mixing = WindowMixing | StateMixing


def detached(state: LayerState) -> LayerState:
    """The gradient stops where a call begins."""
    return {name: value.detach() if torch.is_floating_point(value) else value for name, value in state.items()}
