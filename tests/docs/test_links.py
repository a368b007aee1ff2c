"""Links between documents lead to files and headings that exist, and the page for a package index has none."""

import re
import tomllib
from pathlib import Path

import pytest

from docs._tools import update_docs
from rltransformers.cli.main import build_parser
from tests.docs.blocks import ROOT

PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")})
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def prose(text: str) -> str:
    """``text`` without blocks of code."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """Anchors of the headings, as Git hosts make them: lower case, no punctuation, spaces as hyphens."""
    headings = re.findall(r"^#+ (.+)$", prose(text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path, text: str) -> list[str]:
    """Links of a page to files or headings that do not exist."""
    broken = []
    for link in LINK.findall(prose(text)):
        if re.match("https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        inside = target.is_relative_to(ROOT) and target.exists()
        if not inside or (anchor and anchor not in anchors(target.read_text())):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page, page.read_text()) == []


@pytest.mark.parametrize("link", ["no_such.md", "README.md#no-such-heading", "#no-such-heading", "../outside.md"])
def test_a_broken_link_is_found(link: str) -> None:
    assert broken_links(ROOT / "README.md", f"[text]({link})") == [link]


def test_every_page_is_reached_from_the_readme() -> None:
    reached, new = set(), {ROOT / "README.md"}
    while new:
        page = new.pop()
        reached.add(page)
        links = (link.partition("#")[0] for link in LINK.findall(prose(page.read_text())))
        new |= {path for link in links if (path := (page.parent / link).resolve()) in PAGES} - reached
    assert reached == set(PAGES) - {update_docs.INDEX_PAGE}


def test_paths_in_configs_and_code_name_files_that_exist() -> None:
    named = [
        (path, name)
        for folder in ("configs", "rltransformers", "scripts", "zoo", "benchmarks", "agents", "envs")
        for path in (ROOT / folder).rglob("*.*")
        if path.suffix in (".py", ".yaml")
        for name in re.findall(r"docs/\w[\w/]*(?:\.\w+)?", path.read_text())
    ]
    assert named
    upper = {"docs/results/SUITE.md"}
    assert [(str(path), name) for path, name in named if name not in upper and not (ROOT / name).exists()] == []


def test_the_page_of_a_package_index_needs_no_file_of_the_repository() -> None:
    readme = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["readme"]
    page = prose((ROOT / readme).read_text())
    assert [link for link in LINK.findall(page) if not re.match("https?://", link)] == []
    assert "<" not in re.sub(r"`[^`]*`", "", page).replace("<=", "")  # no comments, no tags
    assert "docs/command_line.md" in page  # files are named in words


def test_links_become_words_on_the_page_of_a_package_index() -> None:
    text = "![A curve](docs/x.png)\n[docs/a.md](docs/a.md#b), [more](docs/a.md), [web](https://a.b)\n```python\nx[0](y)\n```\n"
    expected = "*A curve*\ndocs/a.md, more (`docs/a.md`), [web](https://a.b)\n```python\nx[0](y)\n```\n"
    assert update_docs.index_page(text + "<!-- note -->\n") == expected


def test_the_page_of_the_command_line_names_every_option() -> None:
    page = (ROOT / "docs" / "command_line.md").read_text()
    (commands,) = (action for action in build_parser()._actions if hasattr(action, "choices") and action.choices)
    assert commands.choices is not None
    for name, command in dict(commands.choices).items():
        for action in command._actions:
            for option in action.option_strings:
                assert option in ("-h", "--help") or f"`{option}" in page or f" {option}" in page, f"{name} {option}"


def test_decisions_are_numbered_in_turn() -> None:
    text = (ROOT / "docs" / "decisions.md").read_text()
    numbers = [int(number) for number in re.findall(r"^## (\d+)\. ", prose(text), flags=re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
