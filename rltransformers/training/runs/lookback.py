"""Measures what each head of a backbone looks at while its agent acts.

Axes: B streams, T tokens, H heads, L distances in tokens.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from rltransformers.backbone import Backbone, Record
from rltransformers.core.errors import ConfigError
from rltransformers.functional.windows import unfold_tokens

NO_ATTENTION = (
    "the mixer of this backbone has no attention weights to draw; leave the picture out, or train with mixer softmax"
)


class LookbackMeter:
    """Attention mass by distance, summed over the calls of a backbone."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._calls = 0

    def add(self, lookback: dict[str, Tensor]) -> None:
        """Add one call: [H, L] per layer, each row a mean over the tokens of the call.

        Raises:
            ConfigError: when no layer has attention weights: with the first step, not behind hours of episodes.
        """
        if not lookback:
            raise ConfigError(NO_ATTENTION)
        self._calls += 1
        for name, mass in lookback.items():
            new = mass.detach().double().cpu()
            old = self._sums.get(name, new[:, :0])
            length = max(new.shape[1], old.shape[1])
            self._sums[name] = _pad(old, length) + _pad(new, length)

    def result(self) -> list[NDArray[np.float64]]:
        """Mean attention [H, L] of every layer over calls and tokens; column d belongs to the token d before.

        Empty where there was no call.
        """
        length = max((mass.shape[1] for mass in self._sums.values()), default=0)
        return [(_pad(mass, length) / self._calls).numpy() for mass in self._sums.values()]


@contextmanager
def lookback_of(backbone: Backbone) -> Iterator[LookbackMeter]:
    """Collect the attention of every call of ``backbone`` in the block but for steps that run as machine code."""
    meter = LookbackMeter()
    with recording(backbone, lambda: Record(weights=True), lambda record, _: meter.add(record.lookback)):
        yield meter


def newest_attention(record: Record, x: Tensor) -> dict[str, Tensor]:
    """Attention of the newest token of every stream by distance [B, H, L] per layer, of a call with tokens x [B, T, D].

    The record collected ``attention``, and no token of the call was padding.
    """
    by_token = record.attention or {}
    return {name: unfold_tokens(mass, x.shape[1], len(x))[:, -1] for name, mass in by_token.items()}


@contextmanager
def recording(
    backbone: Backbone, make: Callable[[], Record], collect: Callable[[Record, Tensor], None]
) -> Iterator[None]:
    """Give every call of ``backbone`` in the block a record of its own, and hand it on with the tokens of the call.

    Steps that run as machine code have none.
    """
    records: list[Record] = []

    def ask(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        records.append(make())
        return args, kwargs | {"record": records[-1]}

    def hand_on(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        collect(records.pop(), args[0])

    step = backbone.step

    def step_with_record(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        record = make()
        result = step(x, *args, **kwargs, record=record)
        collect(record, x)
        return result

    handles = [backbone.register_forward_pre_hook(ask, with_kwargs=True), backbone.register_forward_hook(hand_on)]
    backbone.step = step_with_record  # type: ignore[method-assign]  # of this backbone, for as long as it is watched
    try:
        yield
    finally:
        del backbone.step
        for handle in handles:
            handle.remove()


def _pad(mass: Tensor, length: int) -> Tensor:
    return nn.functional.pad(mass, (0, length - mass.shape[1]))
