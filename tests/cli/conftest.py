"""What tests of the command line share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from matplotlib.figure import Figure

DRAWN = Figure.savefig


@pytest.fixture
def drawn_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are drawn after all."""
    monkeypatch.setattr(Figure, "savefig", DRAWN)


@pytest.fixture(autouse=True, scope="module")
def undrawn_pictures() -> Iterator[None]:
    """Pictures are four bytes: drawing takes a quarter of a short run, and tests/training sees it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", undrawn)
        yield


def undrawn(self: Figure, file: object, **_: object) -> None:
    if isinstance(file, str | Path):
        Path(file).write_bytes(b"\x89PNG")
