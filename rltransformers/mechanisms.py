"""Everything that a mechanism of another package needs: ``register``, its record, and the classes it is made from.

docs/tutorials/own_mechanism.md shows one from start to end; ``rltransformers.conformance.check_mechanism`` holds the
laws of the library against it.
"""

import dataclasses
import inspect
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from rltransformers.attention.layer import Attention
from rltransformers.attention.plan import Plan
from rltransformers.attention.reach import Columns, Reach, Rule
from rltransformers.attention.roles import (
    Chooser,
    Combine,
    HandUp,
    HeadOptions,
    Judged,
    Objective,
    Part,
    Score,
    Selected,
    Stage,
    View,
)
from rltransformers.attention.store import Store
from rltransformers.backbone.axes import AXES
from rltransformers.backbone.depth import Depth
from rltransformers.blocks.residual import Gate, Gated, PostNorm, PreNorm, Residual
from rltransformers.core.errors import ConfigError, did_you_mean
from rltransformers.core.extensions import EXTENSIONS, Extension
from rltransformers.core.ranges import check, describe
from rltransformers.core.record import Probe
from rltransformers.core.spec import WEIGHT, Choice, Feature, Loss, NoOptions, Refusal, Size, Spec, Traits, Unread
from rltransformers.functional.call import Call, Tokens, chosen
from rltransformers.functional.channels import channel_delta_sums, channel_sums, rank_one_sums
from rltransformers.functional.delta import delta_products, delta_sums
from rltransformers.functional.keys import At, Group, Past
from rltransformers.functional.modules import unit_length
from rltransformers.functional.recurrences import causal_sums, exponential_attention, kernel_attention
from rltransformers.functional.scan import complex_scan, running_max, scan
from rltransformers.functional.stages import GatedOutput, ShortConvolution, bias_of_steps
from rltransformers.memory.interface import Form, MemoryOptions, Remembered, RowMemory
from rltransformers.mixers.interface import Dims, Mixed, Mixer, RowMixer, StateMixer
from rltransformers.mixers.kernel import HeadsMixer, KernelAttention
from rltransformers.policies.readouts.catalogue import READOUTS
from rltransformers.policies.readouts.interface import Datastore, Readout, StoreOptions
from rltransformers.policies.set_encoders.catalogue import ENCODERS
from rltransformers.policies.set_encoders.interface import EncoderOptions
from rltransformers.positions.interface import Acts, Position

__all__ = [
    "Acts", "At", "Attention", "Call", "Choice", "Chooser", "Columns", "Combine", "ConfigError", "Datastore", "Depth",
    "Dims", "EncoderOptions", "Feature", "Form", "Gate", "Gated", "GatedOutput", "Group", "HandUp", "HeadOptions",
    "HeadsMixer", "Judged", "KernelAttention", "Loss", "MemoryOptions", "Mixed", "Mixer", "NoOptions", "Objective",
    "Part", "Past", "Plan", "Position", "PostNorm", "PreNorm", "Probe", "Reach", "Readout", "Refusal", "Remembered",
    "Residual", "RowMemory", "RowMixer", "Rule", "Score", "Selected", "ShortConvolution", "Size", "Spec", "Stage",
    "StateMixer", "Store", "StoreOptions", "Tokens", "Traits", "Unread", "View", "bias_of_steps", "causal_sums",
    "channel_delta_sums", "channel_sums", "chosen", "complex_scan", "delta_products", "delta_sums",
    "exponential_attention", "kernel_attention", "rank_one_sums", "register", "running_max", "scan", "unit_length",
]  # fmt: skip

TABLES: Mapping[str, Mapping[str, Spec]] = {
    **{name: axis.table for name, axis in AXES.items()},
    "encoder": ENCODERS,
    "readout": READOUTS,
}
"""Mechanisms by axis and name."""
SIZES = {
    "memory_kind": "rows, width, key_width, sinks, tokens_per_step",
    "depth": "",
    "residual": "width",
    "ff": "width, hidden",
    "topology": "dims, dropout",
    "encoder": "elements, width",
    "readout": "width, leaves",
}
"""Arguments of ``build`` in front of the options, by axis; ``dims`` on the others."""
BASES = {"memory_kind": MemoryOptions, "encoder": EncoderOptions, "readout": StoreOptions}
"""What the record of options has to be made from, by axis."""


def register(spec: Spec) -> Spec:
    """Add a mechanism to the choices of its axis, for all configs of this process, and return it.

    Registering the same record again changes nothing. One that its module defines anew, as a reload or a cell of a
    notebook that runs again, takes the place of the old one; networks that were built before stay as they are.

    Raises:
        ConfigError: not a Spec, an unknown axis, a name that is taken, options that are no frozen dataclass or have a
            default outside their range, or a ``build`` that does not take what its axis hands out.
    """
    return add(spec, str(sys._getframe(1).f_globals.get("__name__", "")))


def add(spec: Spec, module: str, distribution: str = "") -> Spec:
    """Add a mechanism that ``module`` registers, of an installed ``distribution`` where one names it."""
    check_spec(spec)
    present = EXTENSIONS.get((spec.axis, spec.name))
    table = TABLES[spec.axis]
    builds = [present and present.spec.build, spec.build]
    places = [(getattr(each, "__module__", ""), getattr(each, "__qualname__", each)) for each in builds]
    anew = present is not None and present.module == module and builds[0] is not builds[1] and places[0] == places[1]
    if spec.name in table and table[spec.name] is not spec and not anew:
        build = getattr(table[spec.name].build, "func", table[spec.name].build)  # of a partial
        owner = present.module if present else getattr(build, "__module__", "rltransformers")
        raise ConfigError(f"{spec.axis} {spec.name!r} is taken by {owner}; choose another name")
    if present is None or anew or distribution:
        assert isinstance(table, MutableMapping)
        table[spec.name] = spec
        EXTENSIONS[spec.axis, spec.name] = Extension(spec, module, distribution)
    return spec


def check_spec(spec: Any) -> None:
    """Raise ConfigError unless a mechanism is described well enough to be chosen, explained and built."""
    if not isinstance(spec, Spec):
        raise ConfigError(f"register takes a Spec, got {spec!r}: Spec(name=..., axis=..., summary=..., build=...)")
    if spec.axis not in TABLES:
        raise ConfigError(f"Spec.axis: unknown axis {spec.axis!r}; {did_you_mean(spec.axis, TABLES)}")
    if not isinstance(spec.name, str) or not spec.name.isidentifier():
        raise ConfigError(f"Spec.name must be letters, digits and underscores, as 'my_mixer', got {spec.name!r}")
    what = f"{spec.axis} {spec.name!r}"
    if not spec.summary:
        raise ConfigError(f"{what} has no summary; say in one sentence what it changes, for `rltransformers list`")
    check_options(spec, what)
    traits = spec.traits
    if not traits.rounding and (traits.single > Traits.single or traits.half > Traits.half):
        raise ConfigError(
            f"{what} declares errors of {traits.single:g} in float32 and {traits.half:g} in bfloat16, usual are "
            f"{Traits.single:g} and {Traits.half:g}; say why in Traits.rounding"
        )
    sizes = SIZES.get(spec.axis, "dims")
    if spec.axis == "mixer" and Feature.SCORES in spec.offers:
        sizes = "dims, plan"
    if spec.build is None and spec.axis == "losses":  # another mechanism produces it
        return
    call = f"build({', '.join(filter(None, [sizes, 'options']))})"
    if not callable(spec.build):
        raise ConfigError(f"{what} has no build; write a function {call}")
    try:
        inspect.signature(spec.build).bind(*range(sizes.count(",") + 1 + bool(sizes)))
    except TypeError as error:
        raise ConfigError(f"{what} is built by {call}, which its function does not take: {error}") from error


def check_options(spec: Spec, what: str) -> None:
    """Raise ConfigError unless the options are a frozen dataclass of settings that a config can hold."""
    record: Any = spec.options
    frozen = getattr(getattr(record, "__dataclass_params__", None), "frozen", False)
    if not (isinstance(record, type) and frozen):
        raise ConfigError(f"the options of {what} must be a class under @dataclass(frozen=True), got {record!r}")
    base = BASES.get(spec.axis, object)
    if not issubclass(record, base):
        raise ConfigError(f"the options of {what} must be made from {base.__name__}: class Options({base.__name__})")
    try:
        ranges = spec.ranges()
    except (NameError, TypeError) as error:
        raise ConfigError(f"the options of {what} have annotations that cannot be read: {error}") from error
    for name, default in spec.defaults().items():
        if name == (WEIGHT if spec.axis == "losses" else "name"):  # a key beside the options in a config
            raise ConfigError(f"{what}: an option cannot be called {name!r}; choose another name")
        if ranges[name] == Sequence[Choice]:
            continue
        try:
            describe(ranges[name])
        except (AttributeError, TypeError) as error:
            raise ConfigError(f"{what}: the annotation of option {name} is none that a config can hold") from error
        if default is not dataclasses.MISSING:
            check(default, ranges[name], f"{what}: the default of option {name}")
