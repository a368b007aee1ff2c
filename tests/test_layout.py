"""The folders on disk, the package list in pyproject.toml and the four links tell the same story."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests._tools.oldest import oldest

ROOT = Path(__file__).resolve().parent.parent
MAP = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
FOLDERS = {package: ROOT / folder for package, folder in MAP["package-dir"].items()}
OUTSIDE = {package: folder for package, folder in FOLDERS.items() if package != "rltransformers"}


def packages_on_disk() -> set[str]:
    """Import names of all folders that hold Python files; links are skipped, since their targets are in the map."""
    return {
        ".".join((package, *python_file.parent.relative_to(folder).parts))
        for package, folder in FOLDERS.items()
        for python_file in folder.rglob("*.py")
        if not any(parent.is_symlink() for parent in python_file.parents if parent.is_relative_to(folder))
    }


@pytest.mark.xdist_group("groups")
def test_groups_of_tests_run_in_one_process(request: pytest.FixtureRequest) -> None:
    """Groups share what takes long to make; pytest-xdist keeps them together by their names, which end so."""
    if request.config.getoption("loadgroup", False):
        assert request.node.nodeid.endswith("@groups"), "this version of pytest does not fit this one of pytest-xdist"


def test_every_package_on_disk_ships() -> None:
    assert set(MAP["packages"]) == packages_on_disk()


def test_every_shipped_package_has_an_init_file() -> None:
    for package in MAP["packages"]:
        mapped = max((name for name in FOLDERS if f"{package}.".startswith(f"{name}.")), key=len)
        folder = FOLDERS[mapped].joinpath(*package.removeprefix(mapped).strip(".").split("."))
        assert (folder / "__init__.py").is_file(), f"{package} would be a namespace package that others can write into"


@pytest.mark.parametrize("package", sorted(OUTSIDE))
def test_links_are_links_to_the_mapped_folders(package: str) -> None:
    link, folder = ROOT / package.replace(".", "/"), OUTSIDE[package]
    if link.is_symlink():
        assert link.resolve() == folder
        assert not link.readlink().is_absolute(), f"{link} must be a relative link to survive a clone"
    else:
        assert not link.is_dir(), f"{link} is a copy of {folder}: delete it"


@pytest.mark.parametrize("folder", ["agents", "envs", "zoo"])
def test_a_folder_refuses_to_load_under_its_bare_name(folder: str) -> None:
    bare_import = subprocess.run([sys.executable, "-c", f"import {folder}"], cwd=ROOT, capture_output=True, text=True)
    assert bare_import.returncode != 0
    assert f"ImportError: import this folder as rltransformers.{folder}" in bare_import.stderr


def test_what_users_install_has_one_oldest_version() -> None:
    """`make test-oldest` runs the tests with them; a requirement in another form ends the program with a message."""
    versions = dict(oldest())
    assert {"torch", "gymnasium", "minari", "onnx"} <= set(versions)
    assert set(versions.items()) == set(oldest()), "a package has two oldest versions"


def test_every_extra_is_named_by_what_needs_it() -> None:
    """By code that asks for it, or by the extra of those who run the tests."""
    project = (ROOT / "pyproject.toml").read_text()
    folders = ("rltransformers", "envs", "agents", "scripts", "zoo", "benchmarks", "docs/_tools")
    code = project + "".join(path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py"))
    extras = set(tomllib.loads(project)["project"]["optional-dependencies"]) - {"dev", "third-party"}
    forms = ("[{}]", ', "{}")', 'EXTRA = "{}"')
    assert {extra for extra in extras if not any(form.format(extra) in code for form in forms)} <= {"docs"}
