"""The one check for unknown names of settings, and what it says."""

import math
from pathlib import Path
from typing import Any

import pytest

from rltransformers.core.errors import ConfigError, MissingExtraError, refuse_unknown, require

KNOWN = {"width": 1, "heads": 2}


@pytest.mark.parametrize(
    ("names", "path", "source", "message"),
    [
        (["width", "withd"], "backbone.", "", "unknown setting backbone.withd; did you mean 'width'?"),
        (["head"], "", "run.yaml", "run.yaml: unknown setting head; did you mean 'heads'?"),
        (["color"], "a.b.", "x", "x: unknown setting a.b.color; known: heads, width"),
        ([None], "a.", "", "unknown setting a.None; known: heads, width"),
        ([math.nan, ("width",)], "a.", "", "unknown setting a.nan; known: heads, width"),
    ],
)
def test_the_first_unknown_name_is_refused_with_its_path(names: Any, path: str, source: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        refuse_unknown(names, KNOWN, path, source)
    assert str(caught.value) == message


def test_where_nothing_is_known_the_message_says_so() -> None:
    with pytest.raises(ConfigError, match=r"^unknown setting a\.b; it takes none$"):
        refuse_unknown(["b"], (), "a.")


def test_known_names_and_none_at_all_pass() -> None:
    refuse_unknown({"heads": 3, "width": None}, KNOWN, "a.")
    refuse_unknown([], (), "a.")


def test_a_missing_package_names_its_extra() -> None:
    with pytest.raises(MissingExtraError, match=r"^no_such is not installed; .*'rltransformers\[knn\]'$"):
        require("no_such", "knn")
    with pytest.raises(MissingExtraError, match=r"^no_such.part is not installed"):
        require("no_such.part", "knn")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import no_such_dependency", "ModuleNotFoundError: No module named 'no_such_dependency'"),
        ("from math import nothing", "ImportError: cannot import name 'nothing'"),
        (
            "raise OSError('libcudart.so.12: cannot open\\nshared object file')",
            "OSError: libcudart.so.12: cannot open shared",
        ),
    ],
)
def test_an_installed_package_that_cannot_be_imported_is_not_called_missing(
    text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_package.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtraError) as caught:
        require("broken_package", "knn")
    assert str(caught.value).startswith("broken_package is installed, but importing it fails: ")
    assert reason in str(caught.value) and "not installed" not in str(caught.value)
