"""The tutorials as notebooks: a page of docs/tutorials is text and programs, and so is a notebook."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
EXAMPLES = ROOT / "examples"


def pages() -> dict[Path, str]:
    """The text that the notebook of every tutorial should have."""
    return {
        EXAMPLES / f"{path.stem}.ipynb": notebook(path.read_text(), path) for path in sorted(TUTORIALS.glob("*.md"))
    }


def notebook(text: str, source: Path) -> str:
    """A Markdown text as a notebook (nbformat 4.5): blocks of Python become code, what stands between them text.

    Comments to the tests go. Links to files lead there from the folder of the notebooks.
    """
    cells: list[dict[str, Any]] = [
        {
            "cell_type": kind,
            "id": f"cell-{number}",
            "metadata": {},
            **({"execution_count": None, "outputs": []} if kind == "code" else {}),
            "source": content.splitlines(keepends=True),
        }
        for number, (kind, content) in enumerate(_cells(text, source))
    ]
    made = {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


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
