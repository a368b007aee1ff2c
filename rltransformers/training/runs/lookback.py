"""Measures what each head of a backbone looks at while its agent acts.

Axes: B environments, R streams of all of them, T tokens, H heads, L distances in tokens.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from rltransformers.backbone import Backbone, Record
from rltransformers.core.errors import ConfigError
from rltransformers.functional.windows import unfold_tokens
from rltransformers.policies.decider import Decider

NO_ATTENTION = (
    "the mixer of this backbone has no attention weights to draw; leave the picture out, or train with mixer softmax"
)


class LookbackMeter:
    """Attention mass by distance, summed over decisions."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._decisions = 0

    def add(self, attention: dict[str, Tensor]) -> None:
        """Add B decisions: [B, H, L] per layer.

        Raises:
            ConfigError: when no layer has attention weights: with the first step, not behind hours of episodes.
        """
        if not attention:
            raise ConfigError(NO_ATTENTION)
        self._decisions += len(next(iter(attention.values())))
        for name, mass in attention.items():
            new = mass.detach().cpu().double().sum(0)
            old = self._sums.get(name, new[:, :0])
            length = max(new.shape[1], old.shape[1])
            self._sums[name] = _pad(old, length) + _pad(new, length)

    def result(self) -> dict[str, NDArray[np.float64]]:
        """Mean attention [H, L] by layer, over decisions; column d belongs to the token d before.

        Empty where there was no call.
        """
        length = max((mass.shape[1] for mass in self._sums.values()), default=0)
        count = max(self._decisions, 1)
        return {name: (_pad(mass, length) / count).numpy() for name, mass in self._sums.items()}


@contextmanager
def lookback_of(backbone: Backbone, decider: Decider | None = None) -> Iterator[LookbackMeter]:
    """Collect the attention of every decision in the block, see ``decisions``.

    Steps in which a policy with chunks goes on with its plan decide nothing.
    """
    meter = LookbackMeter()

    def collect(record: Record, attention: dict[str, Tensor], step: Tensor | None) -> None:
        if decider is not None and step is not None:
            decides = step % decider.policy.decide_every == 0
            attention = {name: mass[decides] for name, mass in attention.items()}
        meter.add(attention)

    with decisions(backbone, decider, collect):
        yield meter


@contextmanager
def decisions(
    backbone: Backbone,
    decider: Decider | None,
    collect: Callable[[Record, dict[str, Tensor], Tensor | None], None],
) -> Iterator[None]:
    """Hand on the record of every step of B environments in the block, and what the tokens that decide look at.

    These are the newest ones, of an agent with a ``decider`` those of the streams that decide, and of the candidates
    that critics choose. Their attention is [B, H, L] per layer. The number of the step in its episode [B] is handed on
    with it where there is a decider. Steps that run as machine code are not seen.
    """
    calls: list[tuple[Record, Tensor, Tensor]] = []  # for the choice of critics

    def hand_on(candidate: Tensor | int) -> None:
        assert decider is not None
        record, x, step = calls.pop()
        rows = decider.rows(step, candidate)
        collect(record, {name: mass[rows] for name, mass in newest_attention(record, x).items()}, step)

    def note_choice(module: nn.Module, args: tuple[Any, ...], values: Tensor) -> None:
        if decider is not None and calls and values.shape[-1] == len(decider.jitter):
            hand_on(values.amin(0).argmax(1))

    def note_call(record: Record, x: Tensor, timestep: Tensor | None) -> None:
        if decider is None or timestep is None:
            collect(record, newest_attention(record, x), None)
            return
        calls.append((record, x, timestep[:: decider.prefixes * max(decider.streams, 1), -1]))
        if decider.prefixes == 1:
            hand_on(0)

    with ExitStack() as stack:
        stack.enter_context(recording(backbone, note_call))
        if decider is not None and decider.prefixes > 1:
            assert decider.policy.critics is not None
            stack.callback(decider.policy.critics.register_forward_hook(note_choice).remove)
        yield


def newest_attention(record: Record, x: Tensor) -> dict[str, Tensor]:
    """Attention of the newest token of every stream by distance [R, H, L] per layer, of a call with tokens x [R, T, D].

    The record collected ``attention``, and no token of the call was padding.
    """
    by_token = record.attention or {}
    return {name: unfold_tokens(mass, x.shape[1], len(x))[:, -1] for name, mass in by_token.items()}


@contextmanager
def recording(backbone: Backbone, collect: Callable[[Record, Tensor, Tensor | None], None]) -> Iterator[None]:
    """Give every call of ``backbone`` in the block a record of attention, and hand it on with tokens and ``timestep``.

    Steps that run as machine code have none.
    """
    records: list[Record] = []

    def ask(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        records.append(Record(weights=True, attention={}))
        return args, kwargs | {"record": records[-1]}

    def hand_on(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        collect(records.pop(), args[0], kwargs.get("timestep"))

    step = backbone.step

    def step_with_record(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        record = Record(weights=True, attention={})
        result = step(x, *args, **kwargs, record=record)
        collect(record, x, kwargs.get("timestep"))
        return result

    handles = [
        backbone.register_forward_pre_hook(ask, with_kwargs=True),
        backbone.register_forward_hook(hand_on, with_kwargs=True),
    ]
    backbone.step = step_with_record  # type: ignore[method-assign]  # of this backbone, for as long as it is watched
    try:
        yield
    finally:
        del backbone.step
        for handle in handles:
            handle.remove()


def _pad(mass: Tensor, length: int) -> Tensor:
    return nn.functional.pad(mass, (0, length - mass.shape[1]))
