"""Values of configs survive their text."""

from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rltransformers.core.yaml_text import parse_yaml, yaml_of

NEAR_NUMBERS = st.text("0123456789eE+-.:_xobntru~", max_size=6)
VALUES = st.recursive(
    NEAR_NUMBERS | st.text(max_size=6) | st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NEAR_NUMBERS, inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=500)
@given(VALUES)
def test_what_is_written_is_read_again(value: Any) -> None:
    for flow in (False, True):
        again = parse_yaml(yaml_of(value, flow), "text")
        assert again == value and repr(again) == repr(value)


def test_numbers_are_those_of_yaml_1_2() -> None:
    read = parse_yaml("[08, 010, -09, 1:30, 1:30.5, 3e-4, 1e6, 0.5]", "text")
    assert read == [8, 10, -9, "1:30", "1:30.5", 3e-4, 1_000_000, 0.5] and isinstance(read[6], int)
    assert parse_yaml(yaml.safe_dump("1e5"), "text") == 100_000  # why texts are quoted by a dumper of our own
