"""Every block of code in the documents runs as it is printed, but for numbers that make it short."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rltransformers.cli import engines
from tests.copies import Copies
from tests.docs.blocks import ROOT, blocks_of, run_page
from tests.extending import unregistered

WIDTH = 78
"""Characters of a line of code that the site shows without scrolling; also in docs/ruff.toml."""

PAGES = sorted(
    str(path.relative_to(ROOT))
    for folder in (ROOT, ROOT / "docs")
    for path in (folder.glob("*.md") if folder == ROOT else folder.rglob("*.md"))
    if path.name not in ("CHANGELOG.md", "package_index.md")  # nothing to run; a copy of the README
)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty folder, for datasets as well, and one thread: other tests run beside this one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(engines, "LocalEngine", Copies)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    torch.set_num_threads(1)
    path, modules = list(sys.path), set(sys.modules)
    with unregistered():
        yield
    sys.path[:] = path
    for name in {"my_mechanisms", "arm"} & (sys.modules.keys() - modules):
        del sys.modules[name]


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of((ROOT / page).read_text(), page)])
def test_every_block_runs(page: str) -> None:
    run_page((ROOT / page).read_text(), page)


@pytest.mark.slow
def test_the_programs_of_the_readme_print_something(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "README.md").read_text()
    programs = [block for block in blocks_of(text, "README.md") if block.language == "python"]
    assert len(programs) == 3
    for block in programs:
        comments = "".join(f"<!-- test: {each} -->\n" for each in block.directives)
        run_page(f"{comments}```python\n{block.text}```\n", block.place)
        assert len(capsys.readouterr().out.splitlines()) >= 2, block.place


def test_the_program_for_the_robot_needs_no_torch() -> None:
    page = (ROOT / "docs" / "guides" / "csv_to_robot.md").read_text()
    (program,) = (block for block in blocks_of(page, "csv_to_robot.md") if "import onnxruntime" in block.text)
    imports = [node for node in ast.walk(ast.parse(program.text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in imports}
    assert names == {"json", "numpy", "onnxruntime", "arm"}


def test_what_does_not_run_is_rare_and_has_a_reason() -> None:
    blocks = [block for page in PAGES for block in blocks_of((ROOT / page).read_text(), page)]
    skipped = [block for block in blocks if block.skipped is not None]
    assert all(re.match("needs .{10,}", block.skipped or "") for block in skipped), [each.place for each in skipped]
    assert len(skipped) <= len(blocks) / 8
    assert {block.language for block in blocks} <= {"python", "diff", "sh", "yaml", "text"}


@pytest.mark.parametrize("page", PAGES)
def test_lines_of_code_fit_the_site(page: str) -> None:
    blocks = [block for block in blocks_of((ROOT / page).read_text(), page) if block.language != "text"]
    lines = [(block, number, line) for block in blocks for number, line in enumerate(block.text.splitlines(), 1)]
    long = [f"{page}:{block.line + number}: {line}" for block, number, line in lines if len(line) > WIDTH]
    assert long == [], f"break these lines at {WIDTH} characters"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```python\nx = 1 +\n```", "page.md:1: SyntaxError"),
        ("text\n\n```python\nprint(unknown)\n```", "page.md:3: NameError"),
        ("```python\nx = 1\n```\n```python\nprint(x)\n```", "page.md:4: NameError"),
        ("```diff\n x = 1\n-y = 2\n+print(y)\n```", "page.md:1: NameError"),
        ("```sh\nrltransformers train no_such_config\n```", "ended with 2"),
        ("```sh\nrltransformers list --no-such-option\n```", "ended with 2"),
        ("```sh\npython scripts/no_such_script.py\n```", "there is no scripts/no_such_script.py"),
        ("```sh\npython docs/_tools/update_docs.py --chek\n```", "refuses --chek"),
        ("```sh\npython -m rltransformers.conformance --agnet x\n```", "refuses --agnet x"),
        ("<!-- test: where torch is installed -->\n```python\nprint(unknown)\n```", "page.md:2: NameError"),
        ("```sh\nmake no_such_target\n```", "no_such_target"),
        ('```sh\npip install ".[no_such_extra]"\n```', "no extra 'no_such_extra'"),
        ("```sh\npip install torch==0.1\n```", "not the pin"),
        ("```sh\nrm -rf x\n```", "nothing is known about the command rm"),
        ("```yaml\nagent: no_such_agent\n```", "ConfigError"),
        ("```yaml\npreset: no_such_preset\n```", "ConfigError"),
        ("```\nno language\n```", "a block of language ''"),
        ("<!-- test: steps=3 -->\n```python\nx = 1\n```", "replaces steps, which is not in the block"),
        (
            "<!-- test: train no_such_config --seed 1 -->\n```sh\nrltransformers list\n```",
            "no command of the block begins",
        ),
    ],
)
def test_a_broken_block_is_found(text: str, message: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(message)):
        run_page(text, "page.md")


@pytest.mark.parametrize("text", ["```python\nx = 1\n", "<!-- test: continues -->\nno block\n"])
def test_a_page_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not closed|stands above"):
        blocks_of(text, "page.md")


def test_comments_above_a_block_change_how_it_runs() -> None:
    run_page("<!-- test: skip needs a reason -->\n```python\nraise ValueError\n```", "page.md")
    run_page("<!-- test: where no_such_module is installed -->\n```python\nraise ValueError\n```", "page.md")
    run_page("```python\nx = 1\n```\n<!-- test: continues -->\n```python\nassert x == 1\n```", "page.md")
    run_page("<!-- test: setup y = 2 -->\n```python\nassert y == 2\n```", "page.md")
    replaced = (
        "<!-- test: steps=3, n.rate=0.5 -->\n```python\n# n.rate: 1e-3\nassert dict(steps=10_000)['steps'] == 3\n```"
    )
    run_page(replaced, "page.md")
    run_page("<!-- test: list --json -->\n```sh\nrltransformers list\n```", "page.md")
    show = "rltransformers show gtrxl_cue_recall --seed -1 --backbone.memory 3"  # there is no seed -1
    run_page(f"<!-- test: show gtrxl_cue_recall --seed 1 -->\n```sh\n{show}\n```", "page.md")
