"""The site holds every page and every file that a page links to, and its reference every public name."""

import importlib
import itertools
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import rltransformers
from docs._tools import docs_site, notebooks
from tests.docs.blocks import ROOT, blocks_of
from tests.docs.test_links import LINK, PAGES, prose

REFERENCE = [
    name
    for page in (ROOT / "docs" / "reference").glob("*.md")
    for name in re.findall(r"^::: (\S+)$", page.read_text(), flags=re.MULTILINE)
]
PUBLIC = ("agents", "backbone", "conformance", "data", "envs", "mechanisms", "policies")


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "GTrXLPPO" in (tmp_path / "reference" / "agents" / "index.html").read_text()
    assert (tmp_path / "repository" / "CONTRIBUTING" / "index.html").is_file()
    assert (tmp_path / "repository" / "examples" / "own_dataset.ipynb").is_file()


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_is_in_the_reference(package: str) -> None:
    module = importlib.import_module(f"rltransformers.{package}")
    assert {f"{module.__name__}.{name}" for name in module.__all__} <= set(REFERENCE)


def test_every_name_of_the_reference_exists_and_is_there_once() -> None:
    assert len(REFERENCE) == len(set(REFERENCE))
    for name in REFERENCE:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_leads_to_the_same_file_in_the_site(page: Path) -> None:
    text = page.read_text()
    before, after = (LINK.findall(prose(each)) for each in (text, docs_site.moved(text, page)))
    for old, new in zip(before, after, strict=True):
        path, hash_, anchor = old.partition("#")
        if not path or re.match("https?://", old):
            assert new == old
            continue
        where = os.path.normpath(docs_site.site_path(page).parent / new.partition("#")[0])
        assert where == str(docs_site.site_path((page.parent / path).resolve())), old
        assert new.endswith(hash_ + anchor)


def test_code_and_broken_links_stay_as_they_are() -> None:
    page = ROOT / "docs" / "environments.md"
    text = "```text\n[a](../README.md)\n```\n[b](../no_such.md) [c](../../outside.md) [d](data.md#trust)\n"
    assert docs_site.moved(text, page) == text


def test_files_of_the_repository_become_pages() -> None:
    config = ROOT / "configs" / "gtrxl_tmaze.yaml"
    assert docs_site.site_path(config) == Path("repository/configs/gtrxl_tmaze.yaml.md")
    assert f"```yaml\n{config.read_text()}```" in docs_site.as_page(config)
    listing = docs_site.as_page(config.parent)
    assert "- [gtrxl_tmaze.yaml](gtrxl_tmaze.yaml.md)\n" in listing and "__init__" not in listing
    assert config in docs_site.outside(config.parent)


def test_several_names_of_one_line_stand_side_by_side() -> None:
    names = '<b><code><span title="x">a,</span></code></b>\n  (<code>(<span>b</span>, <span>c</span>)</code>)\n –'
    assert docs_site.SEVERAL.sub(docs_site.joined, names) == "<b><code>a, b, c</code></b>\n –"
    one = "<b><code>a</code></b> (<code>int</code>) –"
    assert docs_site.SEVERAL.sub(docs_site.joined, one) == one


def test_a_folder_in_the_navigation_stands_for_its_pages() -> None:
    nav = docs_site.with_folders(["index.md", {"More": [{"Lab": "lab/"}, {"Data": "data.md"}]}])
    (lab, data) = nav[1]["More"]
    assert lab["Lab"][0] == "lab/README.md" and "lab/tmaze.md" in lab["Lab"] and data == {"Data": "data.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lists_begin_behind_an_empty_line(page: Path) -> None:
    """Elsewhere Markdown needs none; in the site what follows a line of text is part of it."""
    item = re.compile(r" *([-*]|\d+\.) ")
    if page.name in ("README.md", "package_index.md") and page.parent in (ROOT, ROOT / "docs"):
        return  # not in the site
    lines = prose(page.read_text()).splitlines()
    glued = [
        line
        for before, line in itertools.pairwise(lines)
        if item.match(line) and before.strip() and not item.match(before) and not before.startswith(("  ", "#", "<!--"))
    ]
    assert glued == []


@pytest.mark.parametrize("path", notebooks.pages(), ids=lambda path: path.name)
def test_a_notebook_holds_the_programs_of_its_page(path: Path) -> None:
    page = notebooks.TUTORIALS / f"{path.stem}.md"
    cells = json.loads(notebooks.pages()[path])["cells"]
    programs = ["".join(cell["source"]) + "\n" for cell in _programs(cells)]
    assert programs == [block.text for block in blocks_of(page.read_text(), page.name) if block.language == "python"]
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    assert "<!--" not in text and "```python" not in text
    links = [link.partition("#")[0] for link in LINK.findall(text) if not re.match("https?://", link)]
    assert links and all((path.parent / link).is_file() for link in links), links
    assert len({cell["id"] for cell in cells}) == len(cells)
    silent = [program for program, cell in zip(programs, _programs(cells), strict=True) if not cell["outputs"]]
    assert not any("print(" in program or "savefig(" in program for program in silent), "update_docs.py --notebooks"


def test_output_of_a_notebook_stays_until_a_program_changes(tmp_path: Path) -> None:
    path = tmp_path / "two.ipynb"
    said = [[{"name": "stdout", "output_type": "stream", "text": ["1"]}], [], [{"name": "stdout", "text": ["3"]}]]
    path.write_text(notebooks.notebook([("code", "a"), ("markdown", "Then:"), ("code", "b"), ("code", "c")], said))
    assert notebooks.kept_outputs(path, ["a", "b", "c"]) == said
    assert notebooks.kept_outputs(path, ["a", "b", "d"]) == [said[0], said[1], []]
    assert notebooks.kept_outputs(path, ["d", "b", "c"]) == [[], [], []]


def _programs(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_what_is_cited_is_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["version"] == rltransformers.__version__
    assert (citation["title"], citation["license"]) == (project["name"], project["license"])
    assert [each["name"] for each in citation["authors"]] == [each["name"] for each in project["authors"]]


def test_a_picture_opens_at_its_full_size() -> None:
    picture = '<img alt="curves" src="../a.png" />'
    html = f'<p>{picture}</p><p><a href="b.html">{picture}</a></p>'
    expected = f'<p><a href="../a.png">{picture}</a></p><p><a href="b.html">{picture}</a></p>'
    assert docs_site.PICTURE.sub(docs_site.linked, html) == expected
