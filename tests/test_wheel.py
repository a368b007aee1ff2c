"""The wheel, installed alone: one import name, configs inside, works far away from the source tree."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]  # one process builds it, once


@dataclass(frozen=True)
class Installed:
    """A wheel, the environment it was installed into, and an empty folder outside the repository."""

    wheel: Path
    scripts: Path
    elsewhere: Path

    def run(self, *command: str) -> str:
        """Standard output of a program of that environment, started in the empty folder."""
        program = str(self.scripts / command[0])
        return checked(program, *command[1:], cwd=self.elsewhere)


def checked(*command: str, cwd: Path) -> str:
    """Standard output of a command that must succeed; PYTHONPATH is dropped, it would let the source tree in."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel of a copy of the tree, in a new environment that borrows only the dependencies of this one."""
    folder = tmp_path_factory.mktemp("wheel")
    source, environment, elsewhere = folder / "source", folder / "environment", folder / "elsewhere"
    elsewhere.mkdir()
    copy_what_the_build_reads(source)
    checked(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), ".", cwd=source)
    (wheel,) = folder.glob("*.whl")
    venv.create(environment, with_pip=False, symlinks=os.name != "nt")
    scripts = environment / ("Scripts" if os.name == "nt" else "bin")
    pip = [sys.executable, "-m", "pip", "--python", str(scripts / "python")]
    checked(*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel), cwd=elsewhere)
    # Paths named in a .pth file are searched, their own .pth files are not read: an editable install stays invisible.
    site_packages = next(environment.rglob("site-packages"))
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Installed(wheel, scripts, elsewhere)


def copy_what_the_build_reads(target: Path) -> None:
    """pyproject.toml, the texts it names and the mapped folders; links stay links. Building in place leaves litter."""
    target.mkdir()
    for name in ("pyproject.toml", PROJECT["project"]["readme"], "LICENSE"):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    for folder in set(PROJECT["tool"]["setuptools"]["package-dir"].values()):
        shutil.copytree(ROOT / folder, target / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))


def test_the_wheel_installs_one_import_name(installed: Installed) -> None:
    names = {name.split("/")[0] for name in zipfile.ZipFile(installed.wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"rltransformers"}


def test_the_index_links_to_the_papers(installed: Installed) -> None:
    metadata = next(name for name in zipfile.ZipFile(installed.wheel).namelist() if name.endswith("/METADATA"))
    lines = zipfile.ZipFile(installed.wheel).read(metadata).decode().splitlines()
    links = [line.partition(": ")[2] for line in lines if line.startswith("Project-URL: ")]
    assert links == [f"{label}, {link}" for label, link in PROJECT["project"]["urls"].items()]
    assert all("arxiv.org/abs/" in link for link in links)


def test_the_wheel_holds_every_module_and_config_once(installed: Installed) -> None:
    shipped = zipfile.ZipFile(installed.wheel).namelist()
    expected = {
        f"{package.replace('.', '/')}/{path.relative_to(ROOT / folder).as_posix()}"
        for package, folder in PROJECT["tool"]["setuptools"]["package-dir"].items()
        for pattern in ("*.py", "*.yaml", "py.typed", "catalogue.json", "page.html", "page.css", "page.js")
        for path in (ROOT / folder).rglob(pattern)
    }
    assert len(shipped) == len(set(shipped))
    assert {name for name in shipped if ".dist-info/" not in name} == expected


def test_the_package_is_imported_from_the_wheel_and_the_bare_names_do_not_exist(installed: Installed) -> None:
    program = """
import importlib.util, rltransformers
from rltransformers import agents, configs, envs, zoo
print(rltransformers.__file__)
bare = ("agents", "configs", "envs", "scripts", "zoo", "benchmarks")
print([name for name in bare if importlib.util.find_spec(name)])
"""
    file, bare_names = installed.run("python", "-c", program).splitlines()
    assert Path(file).is_relative_to(installed.scripts.parent)
    assert bare_names == "[]"


def test_packaged_configs_are_readable(installed: Installed) -> None:
    program = """
import importlib.resources
folder = importlib.resources.files("rltransformers.configs")
print(sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".yaml")))
"""
    assert installed.run("python", "-c", program).strip() == str(
        sorted(p.name for p in (ROOT / "configs").glob("*.yaml"))
    )


def test_the_command_lists_the_catalogue(installed: Installed) -> None:
    listed = json.loads(installed.run("rltransformers", "list", "--json"))
    assert {"axes", "presets", "agents", "configs"} <= set(listed)
    assert listed["axes"] and listed["presets"]


@pytest.mark.parametrize("words", [("--sed", "1"), ("--seed", "x"), ("--backbone.widht", "3"), ("--seed", "[")])
def test_messages_of_an_installed_package_name_no_place_in_it(installed: Installed, words: tuple[str, str]) -> None:
    command = [str(installed.scripts / "rltransformers"), "show", "gtrxl_cue_recall", *words]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=installed.elsewhere, capture_output=True, text=True, env=environment)
    assert done.returncode == 2 and done.stderr.startswith("rltransformers: ")
    assert "site-packages" not in done.stderr and "Traceback" not in done.stderr


def test_the_wheel_trains_and_evaluates_from_a_packaged_config(installed: Installed) -> None:
    small = ("--environment.num_envs", "2", "--algorithm.n_steps", "32", "--evaluation.episodes", "2")
    installed.run(
        "rltransformers", "train", "gtrxl_cue_recall", "--name", "wheel", "--train.total_timesteps", "128", *small
    )
    results = json.loads(installed.run("rltransformers", "evaluate", "runs/wheel", "--episodes", "3", "--json"))
    assert [len(result["returns"]) for result in results] == [3]


def test_the_source_distribution_holds_the_documents_that_its_description_names(tmp_path: Path) -> None:
    source, page = tmp_path / "source", (ROOT / PROJECT["project"]["readme"]).read_text()
    copy_what_the_build_reads(source)
    for folder in ("docs", "examples"):
        shutil.copytree(ROOT / folder, source / folder, dirs_exist_ok=True)
    for name in ("MANIFEST.in", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "mkdocs.yml"):
        shutil.copy(ROOT / name, source)
    checked(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(tmp_path), ".", cwd=source)
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        shipped = {name.partition("/")[2]: name for name in archive.getnames()}
        metadata = archive.extractfile(shipped["PKG-INFO"])
        assert metadata is not None and metadata.read().decode().endswith(page)
    named = set(re.findall(r"docs/[\w/]+\.md|[A-Z]+\.md", page))
    assert {"docs/online/README.md", "CHANGELOG.md"} <= named <= set(shipped)
    assert {"CITATION.cff", "examples/README.md", "mkdocs.yml"} <= set(shipped)


def test_suites_run_from_the_wheel(installed: Installed) -> None:
    assert "online " in installed.run("rltransformers", "suite")
    small = {"train.total_timesteps": 64, "environment.num_envs": 8, "algorithm.n_steps": 8, "backbone.width": 8}
    task = {"title": "Cue", "config": "gtrxl_cue_recall", "score": "success", "overrides": small}
    suite = {"title": "Tiny", "seeds": 1, "tasks": {"cue": task | {"variants": {"GTrXL": {}}}}}
    (installed.elsewhere / "tiny.yaml").write_text(json.dumps(suite))
    out = installed.run("rltransformers", "suite", "tiny.yaml")
    assert "written  results/tiny/tiny.md" in out
    folder = installed.elsewhere / "results" / "tiny"
    assert (folder / "runs" / "tiny" / "cue" / "gtrxl-seed0" / "last.zip").is_file()
    page = (folder / "tiny.md").read_text()
    assert "- commit" not in page and re.search(r"- versions: .*rltransformers \d", page), page
    assert "1 done, 0 to do" in installed.run("rltransformers", "suite", "tiny.yaml", "--dry-run")
