"""Backbone configs: valid ones with one or two values changed. What is accepted must act as it trains, in float64."""

import random
from dataclasses import fields
from typing import Any

import torch

from rltransformers.backbone import PRESETS, BackboneConfig, catalogue
from rltransformers.core.errors import ConfigError
from rltransformers.laws.streams import backbone_of
from tests.fuzz.probe import HOSTILE, Probe, WrongError, shown

B, T = 2, 9
SMALL = {"width": 8, "heads": 2, "layers": 2, "memory": 4}
ROUNDING = 1e-7
"""Of outputs of order 1 in float64: the largest split error of 64,000 accepted combinations was 4e-6 in float32."""


def draw(chance: random.Random) -> Probe:
    """One config."""
    values: dict[str, Any] = {**SMALL, "preset": chance.choice(sorted(PRESETS))}
    examples = chance.choice((0, 1, 1, 2))
    for _ in range(examples):
        _use_example(values, chance)
    changes = chance.choice((0, 1, 1, 1, 2))
    try:
        BackboneConfig.from_dict(values)
    except ConfigError:
        examples += 1  # it may not be had anyway
    names = [
        chance.choice((_change_field, _change_option, _change_shape, _change_key))(values, chance)
        for _ in range(changes)
    ]
    # With two changed values, or a combination that may not be had anyway, another name may come first.
    return Probe(
        f"config {shown(values, 400)}",
        lambda: _act(values),
        names=tuple(names) if changes == 1 and not examples else (),
    )


def _use_example(values: dict[str, Any], chance: random.Random) -> None:
    axis = chance.choice(sorted(catalogue()))
    values.update(chance.choice(catalogue()[axis]).example)


def _change_field(values: dict[str, Any], chance: random.Random) -> str:
    name = chance.choice([each.name for each in fields(BackboneConfig)])
    values[name] = chance.choice(HOSTILE)
    return name


def _change_option(values: dict[str, Any], chance: random.Random) -> str:
    specs = [spec for entries in catalogue().values() for spec in entries if spec.defaults() and spec.axis != "losses"]
    spec = chance.choice(specs)
    option = chance.choice(sorted(spec.defaults()))
    example = spec.example.get(spec.axis)
    choice = dict(example) if isinstance(example, dict) else {"name": spec.name}
    values.update({"preset": "gtrxl", "position": "none", **spec.example})  # every entry may be had with these
    values[spec.axis] = {**choice, option: chance.choice(HOSTILE)}
    return option


def _change_shape(values: dict[str, Any], chance: random.Random) -> str:
    name = chance.choice(
        ("position", "mixer", "pattern", "selection", "span", "prior", "depth", "residual", "ff", "topology")
    )
    value = values.get(name, "none")
    values[name] = chance.choice(([], [value], [[value]], [[]], {}, {"name": value}, {"name": [value]}, [value, None]))
    return name


def _change_key(values: dict[str, Any], chance: random.Random) -> str:
    key: Any = chance.choice(("widht", "memory_length", "", 3, None))
    values[key] = chance.choice(HOSTILE)
    return str(key)


def _act(values: dict[str, Any]) -> None:
    config = BackboneConfig.from_dict(values)
    torch.manual_seed(0)
    backbone = backbone_of(config).double().eval()
    x = torch.randn(B, T, backbone.width, dtype=torch.float64)
    reset = torch.zeros(B, T, dtype=torch.bool)
    reset[0, 5] = True
    with torch.no_grad():
        whole, _ = backbone(x, backbone.initial_state(B, dtype=torch.float64), reset)
        state = backbone.initial_state(B, dtype=torch.float64, cached=True)
        steps = []
        for t in range(T):
            y, state = backbone(x[:, t : t + 1], state, reset[:, t : t + 1])
            steps.append(y)
    if not whole.isfinite().all():
        raise WrongError("the outputs are not finite")
    difference = float((whole - torch.cat(steps, 1)).abs().max() / whole.abs().max().clamp(min=1.0))
    if not difference <= ROUNDING:
        raise WrongError(f"acting differs from training by {difference:.1e}")
