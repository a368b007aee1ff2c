"""The tutorials as notebooks: a page of docs/tutorials is text and programs, and so is a notebook.

A notebook also holds what its programs printed and drew, which ``run`` writes into it.
"""

import json
import os
import re
import tempfile
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
EXAMPLES = ROOT / "examples"


def pages() -> dict[Path, str]:
    """The text that the notebook of every tutorial should have."""
    made = {}
    for page in sorted(TUTORIALS.glob("*.md")):
        path = EXAMPLES / f"{page.stem}.ipynb"
        cells = list(_cells(page.read_text(), page))
        made[path] = notebook(cells, kept_outputs(path, [text for kind, text in cells if kind == "code"]))
    return made


def notebook(cells: list[tuple[str, str]], outputs: list[list[Any]]) -> str:
    """Cells of Markdown and of code with their outputs as a notebook (nbformat 4.5)."""
    left = list(enumerate(outputs, start=1))
    made = {
        "cells": [
            {
                "cell_type": kind,
                "id": f"cell-{number}",
                "metadata": {},
                **(dict(zip(("execution_count", "outputs"), left.pop(0), strict=True)) if kind == "code" else {}),
                "source": content.splitlines(keepends=True),
            }
            for number, (kind, content) in enumerate(cells)
        ],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def kept_outputs(path: Path, programs: list[str]) -> list[list[Any]]:
    """Outputs in the notebook at ``path`` of each program: none where it or one before it is another now."""
    old = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    pairs = zip(programs, ("".join(cell["source"]) for cell in old), strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return [old[number]["outputs"] if number < same else [] for number in range(len(programs))]


def run() -> None:
    """Run the notebooks, each in a folder of its own, and write what they print and draw into them."""
    import nbformat
    from nbclient import NotebookClient

    for path, text in pages().items():
        with tempfile.TemporaryDirectory() as folder:
            made = nbformat.reads(text, as_version=4)
            NotebookClient(made, timeout=600, resources={"metadata": {"path": folder}}).execute()
        cells = [(cell["cell_type"], cell["source"]) for cell in made["cells"]]
        outputs = [_portable(cell["outputs"]) for cell in made["cells"] if cell["cell_type"] == "code"]
        path.write_text(notebook(cells, outputs))


def _portable(outputs: list[Any]) -> list[Any]:
    """What was printed and drawn; neither what went to the error stream nor what is of this run alone."""
    kept = [dict(each, metadata={}) if "metadata" in each else dict(each) for each in outputs]
    return [
        {key: None if key == "execution_count" else value for key, value in each.items()}
        for each in kept
        if each.get("name") != "stderr"
    ]


def _cells(text: str, source: Path) -> Iterator[tuple[str, str]]:
    text = re.sub(r"^<!-- test: .*? -->\n", "", text, flags=re.MULTILINE)
    for part in re.split(r"^(```python\n.*?^```)$", text, flags=re.MULTILINE | re.DOTALL):
        if part.startswith("```python\n"):
            yield "code", part.removeprefix("```python\n").removesuffix("```").strip("\n")
        elif part.strip():
            yield "markdown", _from_examples(part.strip("\n"), source)


def _from_examples(text: str, source: Path) -> str:
    def anew(link: re.Match[str]) -> str:
        path = os.path.relpath((source.parent / link.group(2)).resolve(), EXAMPLES)
        return f"{link.group(1)}{path}{link.group(3)}"

    return re.sub(r"(\[[^\]]*\]\()(?![a-z]+:)([^)\s#]+)((?:#[^)\s]*)?\))", anew, text)
