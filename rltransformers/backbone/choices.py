"""Choices of a config, read once: every name found in its table, every option with its value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rltransformers.backbone.axes import CHOICES, Axis
from rltransformers.backbone.losses import LOSSES
from rltransformers.core.errors import ConfigError, refuse_unknown
from rltransformers.core.extensions import load_installed
from rltransformers.core.ranges import Weight, check
from rltransformers.core.spec import WEIGHT, Choice, Feature, is_list

if TYPE_CHECKING:
    from rltransformers.backbone.config import BackboneConfig


SINGLE = ("prior", "head_mixing", "memory_kind", "depth", "residual", "ff", "topology")
"""Axes with one choice for all layers."""


@dataclass(frozen=True)
class LayerChoices:
    """Parts of one layer; ``patterns`` holds one for all heads, or one per head."""

    mixer: Choice
    patterns: tuple[Choice, ...]
    selection: Choice
    span: Choice

    def __iter__(self) -> Iterator[Choice]:
        patterns = (each for pattern in self.patterns for each in pattern.unfolded())
        return iter((self.mixer, *patterns, self.selection, self.span))

    @property
    def of_keys(self) -> dict[str, Any]:
        """Choices that decide which keys there are, by axis."""
        span = self.span if Feature.REACH in self.span.spec.offers else None
        return {"mixer": self.mixer, "pattern": self.patterns, "span": span}


@dataclass(frozen=True)
class Choices:
    """Choices that the layers have in common, and the kinds of layers that take turns."""

    kinds: tuple[LayerChoices, ...]
    positions: tuple[Choice, ...]
    losses: tuple[Choice, ...]
    prior: Choice
    head_mixing: Choice
    memory_kind: Choice
    depth: Choice
    residual: Choice
    ff: Choice
    topology: Choice

    def layer(self, index: int) -> LayerChoices:
        return self.kinds[index % len(self.kinds)]

    def common(self) -> tuple[Choice, ...]:
        """Choices that hold for all layers."""
        return (*self.positions, *(getattr(self, axis) for axis in SINGLE), *self.losses)

    def chosen(self) -> list[Choice]:
        return [*self.common(), *(choice for layer in self.kinds for choice in layer)]


def read(config: BackboneConfig) -> Choices:
    """Find every choice in the catalogue; ConfigError for an unknown name, option or value, and an empty list."""
    losses = read_losses(config.losses)
    by_axis = {name: groups(getattr(config, name), axis) for name, axis in CHOICES.items()}
    turns = math.lcm(*(len(by_axis[name]) for name, axis in CHOICES.items() if axis.per_layer))

    def of_layer(axis: str, index: int) -> tuple[Choice, ...]:
        return by_axis[axis][index % len(by_axis[axis])]

    def one(axis: str, index: int = 0) -> Choice:
        (choice,) = of_layer(axis, index)
        return choice

    kinds = tuple(
        LayerChoices(one("mixer", index), of_layer("pattern", index), one("selection", index), one("span", index))
        for index in range(min(turns, config.layers))
    )
    return Choices(kinds, of_layer("position", 0), losses, *map(one, SINGLE))


def read_losses(written: Mapping[Any, Any]) -> tuple[Choice, ...]:
    """The auxiliary losses with their options; ConfigError for an unknown one, or a weight outside its range."""
    if not written.keys() <= LOSSES.keys():
        load_installed()
    refuse_unknown(written, LOSSES, "backbone.losses.")
    choices = []
    for name, value in written.items():
        path, options = f"backbone.losses.{name}", dict(value) if isinstance(value, Mapping) else {}
        if isinstance(value, Mapping) and WEIGHT not in options:
            raise ConfigError(f"{path} needs {WEIGHT}: write {{{WEIGHT}: ..., ...}}, or a number")
        check(options.pop(WEIGHT, value), Weight, f"{path}.{WEIGHT}" if isinstance(value, Mapping) else path)
        choices.append(Choice.parse({**options, "name": name}, "losses", LOSSES, path))
    return tuple(choices)


def groups(value: Any, axis: Axis) -> list[tuple[Choice, ...]]:
    """The choices written for one axis: for each layer of a turn, those that hold there together."""
    path = f"backbone.{axis.name}"
    if isinstance(value, str):
        return [(Choice.parse(value, axis.name, axis.table, path),)]
    return [
        tuple(
            Choice.parse(each, axis.name, axis.table, where)
            for where, each in items(part, place, axis.per_head or axis.several)
        )
        for place, part in items(value, path, axis.per_layer)
    ]


def items(value: Any, path: str, listed: bool) -> list[tuple[str, Any]]:
    """The items of a list with their paths where a list is meant to be there; otherwise ``value`` alone."""
    if not listed or not is_list(value):
        return [(path, value)]
    if not value:
        raise ConfigError(f"{path} takes a name or {{name: ..., option: value}}, or a list of them, got an empty list")
    return [(f"{path}[{index}]", item) for index, item in enumerate(value)]
