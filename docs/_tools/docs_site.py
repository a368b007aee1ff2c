"""Hooks of `mkdocs build` besides mkdocs.yml: the site holds everything that a page links to, so no link leaves it.

Pages link to files of the repository that are no documents: a config, an example, CONTRIBUTING.md. They come into
the site as pages under `repository/`, and the links are changed to lead there. An entry of `nav` that ends in a slash
stands for all pages of that folder.
"""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FOLDER = Path("repository")
LINK = re.compile(r"(\[[^\]]*\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
SEVERAL = re.compile(
    r"<b><code>((?:<[^>]*>)?\w+,(?:<[^>]*>)?)</code></b>\s*\(<code>((?:(?!</code>).)*)</code>\)", re.DOTALL
)
NAME = re.compile(r'(<span class="doc doc-object-name[^>]*>)([\w.]+)(?=<)')
PICTURE = re.compile(r'(<a [^>]*>\s*)?(<img [^>]*?src="([^"]+)"[^>]*>)')
LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml"}
DOWNLOADS = (".ipynb",)
"""Files that readers want to have, not to see."""


def on_config(config: "MkDocsConfig") -> None:
    """Put the pages of folders into the navigation."""
    config.nav = with_folders(config.nav or [])


def on_files(files: "Files", config: "MkDocsConfig") -> None:
    """Bring what pages link to into the site, and what those link to in turn."""
    from mkdocs.structure.files import File

    new = [Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path]
    seen: set[Path] = set()
    while new:
        page = new.pop()
        for target in outside(page) - seen:
            seen.add(target)
            if target.suffix in DOWNLOADS:
                files.append(File.generated(config, str(site_path(target)), abs_src_path=str(target)))
            else:
                files.append(File.generated(config, str(site_path(target)), content=as_page(target)))
                if target.suffix == ".md" or target.is_dir():
                    new.append(target)


def on_page_markdown(markdown: str, page: "Page", config: "MkDocsConfig", files: "Files") -> str:
    """Links of a document, changed to where their files are in the site."""
    source = page.file.abs_src_path
    return moved(markdown, Path(source)) if source else markdown


def on_page_content(html: str, page: "Page", config: "MkDocsConfig", files: "Files") -> str:
    """The page, with pictures as links to themselves, one line for several names as docstrings have it, and paths of
    names that break behind a dot.
    """
    html = NAME.sub(lambda name: name.group(1) + name.group(2).replace(".", ".<wbr>"), html)
    return PICTURE.sub(linked, SEVERAL.sub(joined, html))


def joined(entry: re.Match[str]) -> str:
    """`**a,** (b, c)`, which is read of `a, b, c: ...` in a docstring, as `**a, b, c**`."""
    names = re.sub(r"<[^>]+>|[()]", "", f"{entry.group(1)} {entry.group(2)}")
    return f"<b><code>{names}</code></b>"


def linked(picture: re.Match[str]) -> str:
    """A picture that opens at its full size when it is clicked, unless it is a link already."""
    link, image, source = picture.groups()
    return picture.group(0) if link else f'<a href="{source}">{image}</a>'


def with_folders(entries: list[Any]) -> list[Any]:
    """Entries of a navigation, every path that ends in a slash replaced by the pages of that folder."""

    def filled(value: Any) -> Any:
        if isinstance(value, list):
            return with_folders(value)
        return _pages(value) if value.endswith("/") else value

    return [
        {title: filled(value) for title, value in entry.items()} if isinstance(entry, dict) else entry
        for entry in entries
    ]


def _pages(folder: str) -> list[str]:
    found = sorted((DOCS / folder).glob("*.md"), key=lambda path: (path.name != "README.md", path.name))
    return [str(path.relative_to(DOCS)) for path in found]


def outside(source: Path) -> set[Path]:
    """Files and folders of the repository, but not of its documents, that a page links to; a folder to its files."""
    if source.is_dir():
        return {path for path in source.iterdir() if path.is_file() and path.name != "__init__.py"}
    parts = prose(source.read_text())
    targets = {_target(link.group(2), source) for part in parts for link in LINK.finditer(part)}
    return {target for target in targets if target and not target.is_relative_to(DOCS)}


def moved(text: str, source: Path) -> str:
    """``text`` of the file ``source`` with links that hold in the site; links to nothing stay as they are."""

    def anew(link: re.Match[str]) -> str:
        target = _target(link.group(2), source)
        if target is None or (target.is_relative_to(DOCS) and source.is_relative_to(DOCS)):
            return link.group(0)
        path = os.path.relpath(site_path(target), site_path(source).parent)
        return f"{link.group(1)}{path}{link.group(3)}"

    parts = re.split(FENCE, text)
    return "".join(part if part.startswith("```") else LINK.sub(anew, part) for part in parts)


def prose(text: str) -> list[str]:
    """The parts of ``text`` between blocks of code."""
    return [part for part in re.split(FENCE, text) if not part.startswith("```")]


def _target(link: str, source: Path) -> Path | None:
    if re.match(r"[a-z]+:", link):
        return None
    path = (source.parent / link).resolve()
    return path if path.exists() and path.is_relative_to(ROOT) else None


def site_path(path: Path) -> Path:
    """Where a file or a folder of the repository lies among the sources of the site."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS)
    name = FOLDER / path.relative_to(ROOT)
    if path.is_dir():
        return name / "index.md"
    return name if path.suffix in (".md", *DOWNLOADS) else name.with_name(f"{name.name}.md")


def as_page(path: Path) -> str:
    """A file as a page: Markdown with links that hold, a list of what is in a folder, else the text as code."""
    name = path.relative_to(ROOT)
    if path.suffix == ".md":
        return moved(path.read_text(), path)
    if path.is_dir():
        names = sorted(os.path.relpath(site_path(each), site_path(path).parent) for each in outside(path))
        lines = [f"- [{each.removesuffix('.md')}]({each})" for each in names]
        return "\n".join([f"# {name}", "", *lines, ""])
    return f"# {name}\n\n```{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}```\n"
