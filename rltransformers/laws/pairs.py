"""Law L13: of two mechanisms that a config accepts together, leaving either out changes the output."""

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from rltransformers.backbone import AXES, PLAIN, BackboneConfig
from rltransformers.core.errors import ConfigError, error_line
from rltransformers.core.spec import Feature, Spec
from rltransformers.laws.partners import SIZES, settings_of, sized
from rltransformers.laws.streams import LawError, backbone_of, require

SETS = 8  # sets of weights that are tried before a mechanism is said to change nothing
IDLE = {
    *((axis.name, axis.neutral) for axis in AXES.values()),  # what is there without a choice
    ("memory_kind", "cache"),  # remembers what the plain memory does
    ("ff", "chunked"),  # these say how something is computed, not what
    ("residual", "checkpoint"),
    ("residual", "mixed_precision"),
    ("pattern", "schedule"),  # a list of other patterns
}
"""Mechanisms whose absence changes nothing."""
ALIKE = {("pattern", "global"), ("span", "multi_scale")}
"""A token sees itself and the first ones of its episode, and no window is shorter than itself."""


def output(values: Mapping[str, Any], seed: int) -> Tensor:
    """Return outputs of random tokens; a parameter of one name and shape has the same values in every backbone."""
    backbone, generator = backbone_of(BackboneConfig(**{**PLAIN, **sized(values)})).eval(), torch.Generator()
    with torch.no_grad():
        for name, value in backbone.named_parameters():
            generator.manual_seed(zlib.crc32(name.encode()) + seed)
            constant = bool((value == value.flatten()[0]).all())  # what starts at one number stays near it
            value.copy_((value if constant else 0.3) + torch.randn(value.shape, generator=generator) / 2)
        backbone.constrain_()
        y, _ = backbone(torch.randn(2, 19, backbone.width, generator=generator.manual_seed(seed)))
    return y


def idle(
    both: Mapping[str, Any], one: Mapping[str, Any], other: Mapping[str, Any], outputs: dict[str, Tensor]
) -> tuple[bool, bool]:
    """Return whether the first and whether the second of two mechanisms changes nothing beside the other.

    Settings have both of them, or one alone; ``outputs`` of one alone, which many pairs share, are filled here. Several
    sets of weights are tried, for they decide whether a token halts.
    """
    unchanged = [True, True]  # without one, without the other
    for seed in range(SETS):
        together = output(both, seed)
        for place, rest in enumerate((other, one)):
            if unchanged[place]:
                key = f"{seed} {sorted(rest.items(), key=str)}"
                alone = outputs[key] = outputs[key] if key in outputs else output(rest, seed)
                unchanged[place] = alone.shape == together.shape and torch.allclose(alone, together, 1e-9, 1e-9)
        if not any(unchanged):
            break
    return unchanged[0], unchanged[1]


def is_accepted(values: Mapping[str, Any]) -> bool:
    """Return whether a config takes these settings."""
    try:
        BackboneConfig(**{**PLAIN, **sized(values)})
    except ConfigError:
        return False
    return True


def partners(spec: Spec) -> Iterator[Spec]:
    """Yield the mechanisms of all other axes that change something."""
    for axis in AXES.values():
        if axis.name in (spec.axis, "losses"):
            continue
        for other in axis.table.values():
            if (axis.name, other.name) not in IDLE and {(spec.axis, spec.name), (axis.name, other.name)} != ALIKE:
                yield other


def each_acts(spec: Spec, values: Mapping[str, Any]) -> int:
    """L13: beside every mechanism that a config accepts, both ``spec`` and the other one act; returns their number.

    ``values`` are the settings that choose ``spec``. Raises LawError with the first pair of which one does not act, or
    that fails.
    """
    own = {spec.axis: values[spec.axis]} if spec.axis in values else dict(values)
    rest = {key: value for key, value in values.items() if key not in own}
    acts, outputs = (spec.axis, spec.name) not in IDLE, dict[str, Tensor]()
    if acts:
        changes = idle({**rest, **own}, {**rest, **own}, rest, outputs)[0]
        require(not changes, f"{spec.axis} {spec.name!r} changes nothing: the outputs are those of the plain backbone")
    accepted = 0
    for other in partners(spec):
        what = f"{other.axis} {other.name!r} is accepted beside {spec.axis} {spec.name!r}"
        needed = " and ".join(f"Feature.{each.name}" for each in other.needs)
        way_out = f"; it needs {needed}, which Spec.offers promises" if spec.axis == "mixer" and needed else ""
        example = settings_of(other.axis, other.name, other.example)
        theirs = {key: value for key, value in example.items() if key not in own}
        sizes = {key: value for key, value in theirs.items() if key in SIZES}
        if all(key in rest and rest[key] == value for key, value in theirs.items()):
            continue  # it is there anyway
        together = {**rest, **theirs, **own}, {**rest, **sizes, **own}, {**rest, **theirs}
        try:
            if not all(map(is_accepted, together)):
                continue
            own_idle, other_idle = idle(*together, outputs)
        except Exception as error:  # whatever two mechanisms raise that were promised to go together
            raise LawError(f"{what}, but fails with {error_line(error)[:200]}{way_out}") from error
        if other_idle and Feature.HALTING in other.offers:
            continue  # with these weights no token halts
        accepted += 1
        if acts:
            require(not own_idle, f"{what}, and {spec.axis} {spec.name!r} then changes nothing")
        require(not other_idle, f"{what}, but changes nothing{way_out}")
    return accepted
