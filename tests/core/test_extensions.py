"""Files name the modules of registered mechanisms, and do not import them."""

import json
import sys
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rltransformers.core.checkpoint import load_checkpoint, save_checkpoint
from rltransformers.core.errors import CheckpointError
from rltransformers.core.extensions import EXTENSIONS, extensions_named
from rltransformers.mechanisms import TABLES, add
from tests.extending import install, unregistered, write_module

SETTINGS = {"policy_kwargs": {"backbone": {"mixer": ["softmax", {"name": "mine", "x": 1}], "losses": {"ours": 0.1}}}}


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with unregistered():
        yield


def register(module: str = "theirs", distribution: str = "") -> None:
    add(replace(TABLES["mixer"]["linear"], name="mine"), module, distribution)


def test_settings_name_the_mechanisms_that_stand_under_their_axis() -> None:
    register()
    add(replace(TABLES["losses"]["span"], name="ours"), "theirs")
    assert [each["name"] for each in extensions_named(SETTINGS)] == ["mine", "ours"]
    assert extensions_named({"preset": "mine", "mixer": {"name": "linear", "note": ["other"]}}) == []


def test_a_file_without_registered_mechanisms_is_as_before(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "a.zip", "Agent", SETTINGS, {"x": torch.ones(1)})
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert "mechanisms" not in json.loads(archive.read("header.json"))


def saved(tmp_path: Path, module: str, distribution: str = "") -> Path:
    """A checkpoint whose mechanism is not registered any more."""
    register(module, distribution)
    save_checkpoint(tmp_path / "a.zip", "Agent", SETTINGS, {"x": torch.ones(1)})
    load_checkpoint(tmp_path / "a.zip")
    del TABLES["mixer"]["mine"], EXTENSIONS["mixer", "mine"]
    return tmp_path / "a.zip"


@pytest.mark.parametrize(
    ("module", "distribution", "message"),
    [
        (
            "theirs",
            "",
            r"mixer 'mine', which the module theirs registers: import theirs first \(.*--import theirs\)",
        ),
        ("theirs", "their-package", "registers: pip install their-package, or import theirs first"),
        ("__main__", "", "needs mixer 'mine', which the script registers that made the file: move it into a module"),
    ],
)
def test_a_file_says_which_module_it_needs(tmp_path: Path, module: str, distribution: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(saved(tmp_path, module, distribution))


def test_loading_imports_no_module_but_those_of_installed_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    write_module(tmp_path, "lying_about")
    path = saved(tmp_path, "lying_about")
    with pytest.raises(CheckpointError, match="import lying_about first"):
        load_checkpoint(path)
    assert "lying_about" not in sys.modules
    write_module(
        tmp_path,
        "installed",
        "import dataclasses\nfrom rltransformers.mechanisms import TABLES\n"
        "SPEC = dataclasses.replace(TABLES['mixer']['linear'], name='mine')",
    )
    install(monkeypatch, tmp_path, mine="installed:SPEC")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_checkpoint(path)
    assert "saved with mixer 'mine' of the module lying_about; here installed registered it" in str(caught[0].message)


@pytest.mark.parametrize("mechanisms", ['"x"', '[{"axis": 1}]', "[3]", '{"axis": "mixer"}'])
def test_a_list_of_mechanisms_that_is_none_is_named(tmp_path: Path, mechanisms: str) -> None:
    save_checkpoint(tmp_path / "a.zip", "Agent", SETTINGS, {"x": torch.ones(1)})
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        header, tensors = archive.read("header.json").decode(), archive.read("tensors.pt")
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("header.json", header.replace('"kind"', f'"mechanisms": {mechanisms}, "kind"'))
        archive.writestr("tensors.pt", tensors)
    with pytest.raises(CheckpointError, match="mechanisms must be a list of"):
        load_checkpoint(tmp_path / "b.zip")
