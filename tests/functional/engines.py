"""Recurrences of ``functional`` under one roof: how each is called, and what it does with one token.

Axes: B streams, T tokens, H heads, F features, V numbers of a value, R corrections.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from rltransformers.functional.call import Tokens
from rltransformers.functional.channels import channel_delta_sums, channel_sums
from rltransformers.functional.delta import delta_products, delta_sums
from rltransformers.functional.recurrences import causal_sums, exponential_attention
from rltransformers.functional.scan import complex_scan, scan

H, F, V, R = 2, 4, 3, 2

State: TypeAlias = dict[str, Tensor]
Rows: TypeAlias = dict[str, Tensor]
"""Inputs by name, [B, T, ...]."""
Shapes: TypeAlias = dict[str, tuple[int, ...]]
Call: TypeAlias = Callable[[Rows, State, Tokens, int], tuple[Tensor, State]]


def heads_first(rows: Rows) -> list[Tensor]:
    return [x.transpose(1, 2) for x in rows.values()]


def sums(function: Callable[..., tuple[Tensor, Tensor]]) -> Call:
    """Call a function of queries, keys, values, rates if any, the state, and the decay."""

    def call(rows: Rows, state: State, tokens: Tokens, chunk: int) -> tuple[Tensor, State]:
        *parts, log_decay = heads_first(rows)
        out, after = function(*parts, state["sum"], tokens, chunk=chunk, log_decay=log_decay)
        return out.transpose(1, 2), {"sum": after}

    return call


def exponential(rows: Rows, state: State, tokens: Tokens, chunk: int) -> tuple[Tensor, State]:
    q, k, v, log_input, log_decay = heads_first(rows)
    out, after = exponential_attention(q, k, v, log_input, log_decay, state, tokens, chunk)
    return out.transpose(1, 2), after


def scanned(function: Callable[..., tuple[Tensor, Tensor]]) -> Call:
    def call(rows: Rows, state: State, tokens: Tokens, chunk: int) -> tuple[Tensor, State]:
        out, after = function(decay_of(rows), rows["value"], state["sum"], tokens, chunk)
        return out, {"sum": after}

    return call


def decay_of(rows: Rows) -> Tensor:
    """From logarithms, so that all engines are tested with the same decays; an angle turns a complex one."""
    size = rows["log_decay"].exp()
    if "angle" not in rows:
        return size
    return torch.stack([size * rows["angle"].cos(), size * rows["angle"].sin()], -2)


def outer(key: Tensor, value: Tensor) -> Tensor:
    return key[..., :, None] * value[..., None, :]


def read(query: Tensor, memory: Tensor) -> Tensor:
    return (query[..., None] * memory).sum(-2)


def add_token(x: Rows, state: State) -> tuple[Tensor, State]:
    decay = x["log_decay"].exp()
    memory = decay.reshape(*decay.shape, *[1] * (3 - decay.dim())) * state["sum"] + outer(x["key"], x["value"])
    return read(x["query"], memory), {"sum": memory}


def correct_token(x: Rows, state: State) -> tuple[Tensor, State]:
    decay = x["log_decay"].exp()
    memory = decay.reshape(*decay.shape, *[1] * (3 - decay.dim())) * state["sum"]
    keys, values, rates = x["key"], x["value"], x["rate"]
    if keys.dim() == 2:
        keys, values, rates = keys[:, None], values[:, None], rates[:, None]
    for key, value, rate in zip(keys.unbind(1), values.unbind(1), rates.unbind(1), strict=True):
        memory = memory + rate[:, None, None] * outer(key, value - read(key, memory))
    return read(x["query"], memory), {"sum": memory}


def exponential_token(x: Rows, state: State) -> tuple[Tensor, State]:
    with torch.no_grad():
        largest = torch.maximum(x["log_decay"] + state["max"], x["log_input"])
    decay, weight = (x["log_decay"] + state["max"] - largest).exp(), (x["log_input"] - largest).exp()
    memory = decay[:, None, None] * state["sum"] + weight[:, None, None] * outer(x["key"], x["value"])
    norm = decay[:, None] * state["norm"] + weight[:, None] * x["key"]
    below = torch.maximum((norm * x["query"]).sum(-1).abs(), (-largest).exp())
    return read(x["query"], memory) / below[:, None], {"sum": memory, "norm": norm, "max": largest}


def scanned_token(x: Rows, state: State) -> tuple[Tensor, State]:
    decay, value, before = decay_of(x), x["value"], state["sum"]
    if "angle" in x:
        (a, b), (c, d) = decay, before
        before, decay = torch.stack([a * c - b * d, a * d + b * c]), torch.ones_like(decay)
    out = decay * before + value
    return out, {"sum": out}


def unit(x: Tensor) -> Tensor:
    return functional.normalize(x, dim=-1)


RANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "query": torch.abs,
    "key": lambda x: unit(x.abs()),
    "rate": lambda x: 2 * x.sigmoid(),
    "log_decay": lambda x: -x.abs(),
}


@dataclass(frozen=True)
class Engine:
    """A recurrence.

    Attributes:
        call: inputs, state, tokens and chunk to outputs and state.
        token: the same for one token of one stream.
        shapes: of the inputs of one token, by name, in the order of the call.
        state: shapes of the state of one stream.
    """

    call: Call
    token: Callable[[Rows, State], tuple[Tensor, State]]
    shapes: Shapes
    state: Shapes

    def draw(self, streams: int, time: int, seed: int = 0) -> tuple[Rows, State]:
        """Inputs [B, T, ...] and a state; positive queries and keys, so that no denominator is near 0."""
        generator = torch.Generator().manual_seed(seed)
        rows = {
            name: torch.randn(streams, time, *shape, generator=generator, dtype=torch.float64)
            for name, shape in self.shapes.items()
        }
        for name in rows:
            rows[name] = RANGES.get(name, torch.clone)(rows[name])
        state = {
            name: torch.rand(streams, *shape, generator=generator, dtype=torch.float64)
            for name, shape in self.state.items()
        }
        return rows, state

    def loop(
        self, rows: Rows, state: State, reset: Tensor, length: list[int]
    ) -> tuple[list[list[Tensor]], list[State]]:
        """Token by token: the outputs of the valid tokens of every stream, and its last state."""
        outs, finals = [], []
        for b, count in enumerate(length):
            now, outs_of_stream = {name: x[b] for name, x in state.items()}, []
            for t in range(count):
                if reset[b, t]:
                    now = {name: torch.zeros_like(x) for name, x in now.items()}
                out, now = self.token({name: x[b, t] for name, x in rows.items()}, now)
                outs_of_stream.append(out)
            outs.append(outs_of_stream)
            finals.append(now)
        return outs, finals


QUERY: Shapes = {"query": (H, F), "key": (H, F), "value": (H, V)}
SUM: Shapes = {"sum": (H, F, V)}
ENGINES = {
    "causal_sums": Engine(sums(causal_sums), add_token, QUERY | {"log_decay": (H,)}, SUM),
    "delta_sums": Engine(sums(delta_sums), correct_token, QUERY | {"rate": (H,), "log_decay": (H,)}, SUM),
    "delta_products": Engine(
        sums(delta_products),
        correct_token,
        {"query": (H, F), "key": (H, R, F), "value": (H, R, V), "rate": (H, R), "log_decay": (H,)},
        SUM,
    ),
    "channel_sums": Engine(sums(channel_sums), add_token, QUERY | {"log_decay": (H, F)}, SUM),
    "channel_delta_sums": Engine(
        sums(channel_delta_sums), correct_token, QUERY | {"rate": (H,), "log_decay": (H, F)}, SUM
    ),
    "exponential_attention": Engine(
        exponential,
        exponential_token,
        QUERY | {"log_input": (H,), "log_decay": (H,)},
        SUM | {"norm": (H, F), "max": (H,)},
    ),
    "scan": Engine(scanned(scan), scanned_token, {"log_decay": (F, 1), "value": (F, V)}, {"sum": (F, V)}),
    "complex_scan": Engine(
        scanned(complex_scan), scanned_token, {"log_decay": (V,), "angle": (V,), "value": (2, V)}, {"sum": (2, V)}
    ),
}
