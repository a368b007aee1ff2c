"""The one check for unknown names of settings, and what it says."""

import math
from typing import Any

import pytest

from rltransformers.core.errors import ConfigError, refuse_unknown

KNOWN = {"width": 1, "heads": 2}


@pytest.mark.parametrize(
    ("names", "path", "source", "message"),
    [
        (["width", "withd"], "backbone.", "", "unknown setting backbone.withd; did you mean 'width'?"),
        (["head"], "", "run.yaml", "run.yaml: unknown setting head; did you mean 'heads'?"),
        (["colour"], "a.b.", "x", "x: unknown setting a.b.colour; known: heads, width"),
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
