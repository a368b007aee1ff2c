"""Mechanisms of other packages: which module registered each, and those that installed packages bring.

A file that names such a mechanism says which module it came from; reading the file imports no module.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rltransformers.core.errors import CheckpointError, error_line
from rltransformers.core.ranges import describe, fits, shown

if TYPE_CHECKING:
    from rltransformers.core.spec import Spec

GROUP = "rltransformers.mechanisms"
"""Group of packaging entry points: each names a Spec, or a module that registers some when it is imported."""


@dataclass(frozen=True)
class Extension:
    """A mechanism, the module that registers it, and the distribution that names it as an entry point ("": none)."""

    spec: Spec
    module: str
    distribution: str = ""


EXTENSIONS: dict[tuple[str, str], Extension] = {}  # registered mechanisms by axis and name
_LOADED: set[EntryPoint] = set()


def find_mechanism(axis: str, name: str) -> Spec | None:
    """Return a registered mechanism, or None; installed packages are asked for a name that is not registered."""
    if (axis, name) not in EXTENSIONS:
        load_installed()
    extension = EXTENSIONS.get((axis, name))
    return None if extension is None else extension.spec


def names_of(axis: str, table: Collection[str]) -> list[str]:
    """List the names of ``table`` and of the registered mechanisms of an axis."""
    return list(dict.fromkeys([*table, *(name for other, name in EXTENSIONS if other == axis)]))


def load_installed() -> None:
    """Register what installed distributions name as entry points of ``GROUP``, once; warn of a broken one."""
    for entry in entry_points(group=GROUP):
        if entry in _LOADED:
            continue
        _LOADED.add(entry)
        distribution = entry.dist.name if entry.dist is not None else ""
        try:
            value = entry.load()
            if not isinstance(value, ModuleType):  # which has registered its own when it was imported
                # ``add`` checks a spec against all axes, which modules above this one define
                importlib.import_module("rltransformers.mechanisms").add(value, entry.module, distribution)
        except Exception as error:  # somebody else's module may raise anything
            warnings.warn(
                f"the mechanism {entry.name!r} of the installed package {distribution or entry.value!r} is left out: "
                f"{error_line(error)}; update the package or uninstall it",
                stacklevel=2,
            )


def extensions_named(settings: Any) -> list[dict[str, str]]:
    """List the registered mechanisms that nested settings name, as a checkpoint stores them."""
    axes = {axis for axis, _ in EXTENSIONS}
    pairs = dict.fromkeys(pair for pair in _choices(settings, axes) if pair in EXTENSIONS)
    return [
        {"axis": axis, "name": name, "module": extension.module, "distribution": extension.distribution}
        for axis, name in pairs
        for extension in [EXTENSIONS[axis, name]]
    ]


def _choices(value: Any, axes: Collection[str], axis: str = "") -> Iterator[tuple[str, str]]:
    """Yield (axis, name) of every text that may name a mechanism of ``axes`` below the key of its axis."""
    if isinstance(value, str):
        yield axis, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            if axis == "losses":
                yield axis, str(key)
            yield from _choices(part, axes, key if key in axes else axis)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _choices(part, axes, axis)


def require_extensions(stored: Any, source: str) -> None:
    """Raise CheckpointError unless the mechanisms that ``extensions_named`` listed in ``source`` are registered."""
    kind = list[Mapping[str, str]]
    if not fits(stored, kind):
        raise CheckpointError(f"{source}: mechanisms must be {describe(kind)}, got {shown(stored)}")
    for entry in stored:
        axis, name, module, distribution = (entry.get(key, "") for key in ("axis", "name", "module", "distribution"))
        if find_mechanism(axis, name) is None:
            what = f"{source} needs {axis} {name!r}, which"
            if module == "__main__":
                raise CheckpointError(
                    f"{what} the script registers that made the file: move it into a module of its own and import that "
                    "first"
                )
            way_out = f"pip install {distribution}, or " if distribution else ""
            raise CheckpointError(
                f"{what} the module {module} registers: {way_out}import {module} first (on the command line: --import "
                f"{module})"
            )
        if (owner := EXTENSIONS[axis, name].module) != module:
            warnings.warn(
                f"{source} was saved with {axis} {name!r} of the module {module}; here {owner} registered it: it has "
                "to compute the same",
                stacklevel=2,
            )
