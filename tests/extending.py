"""Mechanisms that a test registers, and packages that it seems to have installed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rltransformers.core import extensions
from rltransformers.mechanisms import TABLES


@contextmanager
def unregistered() -> Iterator[None]:
    """Take out of the tables what the block registers."""
    before, tables = dict(extensions.EXTENSIONS), {axis: dict(table) for axis, table in TABLES.items()}
    loaded = set(extensions._LOADED)
    try:
        yield
    finally:
        extensions.EXTENSIONS.clear()
        extensions.EXTENSIONS.update(before)
        extensions._LOADED.clear()
        extensions._LOADED.update(loaded)
        for axis, table in TABLES.items():
            assert isinstance(table, dict)
            table.clear()
            table.update(tables[axis])


MODULE = """
import dataclasses
import rltransformers
from rltransformers.mechanisms import TABLES

MIXER = dataclasses.replace(TABLES["mixer"]["linear"], id="", name="{name}_mixer")
GATE = dataclasses.replace(TABLES["residual"]["highway"], id="", name="{name}_gate")
for spec in (MIXER, GATE):
    rltransformers.register(spec)
"""


def write_module(folder: Path, name: str, text: str = MODULE) -> None:
    """Write a module that registers mixer ``NAME_mixer``, which is linear attention, and residual ``NAME_gate``."""
    (folder / f"{name}.py").write_text(text.replace("{name}", name))


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, **entries: str) -> None:
    """Make ``folder`` a distribution "own-mechanisms" with these entry points."""
    info = folder / "own_mechanisms-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-mechanisms\nVersion: 1.0\n")
    lines = "\n".join(f"{name} = {value}" for name, value in entries.items())
    (info / "entry_points.txt").write_text(f"[rltransformers.mechanisms]\n{lines}\n")
    monkeypatch.syspath_prepend(str(folder))
