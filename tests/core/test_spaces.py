"""Flattening of nested spaces, refusal of what no encoder takes, and the JSON form of spaces."""

import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rltransformers.core.errors import ConfigError, DataError
from rltransformers.core.spaces import (
    box_bounds,
    check_supported,
    differing_spaces,
    leaf_spaces,
    leaf_values,
    map_leaves,
    nest_leaves,
    nest_paths,
    nested_leaves,
    normalized_leaves,
    space_from_json,
    space_from_leaves,
    space_from_text,
    space_of,
    space_outline,
    space_to_json,
)

NESTED = spaces.Dict(
    [
        ("view", spaces.Box(0, 255, (5, 7, 3), np.uint8)),
        ("arm", spaces.Tuple([spaces.Discrete(4, start=-1), spaces.Dict({"grip": spaces.MultiBinary(3)})])),
        ("counts", spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[0, 1], [0, 2]]))),
    ]
)
SUPPORTED = [
    NESTED,
    spaces.Discrete(6),
    spaces.Discrete(6, start=5),
    spaces.MultiBinary((2, 3)),
    spaces.MultiDiscrete([2, 5], dtype=np.int32),
    spaces.Box(-np.inf, np.inf, (3,), np.float64),
    spaces.Box(np.array([-1.5, 0.1], np.float32), np.array([np.inf, 0.7], np.float32)),
    spaces.Box(-2.0, 2.0, (), np.float32),
    spaces.Box(0, 1, (4,), np.bool_),  # type: ignore[arg-type]  # gymnasium takes bool_ but does not annotate it
]
REFUSED = [
    spaces.Text(8),
    spaces.Sequence(spaces.Discrete(3)),
    spaces.Graph(spaces.Discrete(3), None),
    spaces.OneOf([spaces.Discrete(2), spaces.Box(0, 1, (1,))]),
]


def test_leaves_keep_the_order_of_the_space_and_are_named_by_path() -> None:
    assert list(leaf_spaces(NESTED)) == ["view", "arm/0", "arm/1/grip", "counts"]
    assert list(leaf_spaces(spaces.Discrete(2))) == [""]


def test_values_flatten_to_the_paths_of_the_space_and_nest_back() -> None:
    value = NESTED.sample()
    leaves = leaf_values(NESTED, value)
    assert list(leaves) == list(leaf_spaces(NESTED))
    assert leaves["arm/1/grip"] is value["arm"][1]["grip"]
    assert NESTED.contains(nest_leaves(NESTED, leaves))


def test_values_flatten_to_the_same_paths_with_and_without_their_space() -> None:
    value = NESTED.sample()
    assert nested_leaves(value) == leaf_values(NESTED, value)
    assert nested_leaves(7) == {"": 7}
    assert nested_leaves({}) == {}
    assert nest_paths(nested_leaves({"a": {"b": 1, "c": 2}, "d": 3})) == {"a": {"b": 1, "c": 2}, "d": 3}
    assert nest_paths({"": 7}) == 7


def test_functions_of_leaves_keep_the_nesting_of_the_first_value() -> None:
    first, second = {"a": (1, 2), "b": {"c": 3}}, {"b": {"c": 30}, "a": (10, 20)}
    assert map_leaves(lambda x, y: x - y, first, second) == {"a": (-9, -18), "b": {"c": -27}}
    assert map_leaves(str, 5) == "5"


@pytest.mark.parametrize(
    ("other", "error"),
    [({"a": (1, 2)}, KeyError), ({"a": (1, 2), "b": 1, "c": 0}, KeyError), ({"a": (1, 2, 3), "b": 1}, ValueError),
     ({"a": (1,), "b": 1}, ValueError), (4, KeyError)],
)  # fmt: skip
def test_values_that_are_nested_otherwise_have_no_function_of_leaves_in_common(other: Any, error: Any) -> None:
    with pytest.raises(error):
        map_leaves(max, {"a": (1, 2), "b": 3}, other)


def test_batched_values_flatten_alike() -> None:
    batch = gym.vector.utils.batch_space(NESTED, 3).sample()
    shapes = {path: np.shape(leaf) for path, leaf in leaf_values(NESTED, batch).items()}
    assert shapes == {"view": (3, 5, 7, 3), "arm/0": (3,), "arm/1/grip": (3, 3), "counts": (3, 2, 2)}


def test_a_missing_member_is_named() -> None:
    with pytest.raises(DataError, match="arm/1/grip"):
        leaf_values(NESTED, {"view": 0, "arm": (0, {}), "counts": 0})
    with pytest.raises(DataError, match="tuple of 2"):
        leaf_values(NESTED, {"view": 0, "arm": (0,), "counts": 0})


def test_keys_that_would_clash_as_paths_are_refused() -> None:
    with pytest.raises(ConfigError, match="'a/b'"):
        leaf_spaces(spaces.Dict({"a/b": spaces.Discrete(2)}))


@pytest.mark.parametrize("space", SUPPORTED, ids=str)
def test_supported_spaces_pass_and_survive_json(space: gym.Space[Any]) -> None:
    check_supported(space, "observation")
    text = space_to_json(space)
    json.loads(text, parse_constant=pytest.fail)  # strict JSON: no bare Infinity
    again = space_from_json(text)
    assert again == space
    assert [leaf.dtype for leaf in leaf_spaces(again).values()] == [leaf.dtype for leaf in leaf_spaces(space).values()]
    assert list(leaf_spaces(again)) == list(leaf_spaces(space))


@pytest.mark.parametrize("leaf", REFUSED, ids=lambda leaf: type(leaf).__name__)
def test_other_spaces_are_refused_with_role_path_type_and_way_out(leaf: gym.Space[Any]) -> None:
    with pytest.raises(ConfigError, match=rf"observation space at 'a/0' is {type(leaf).__name__}.*drop the field"):
        check_supported(spaces.Dict({"a": spaces.Tuple([leaf])}), "observation")
    with pytest.raises(ConfigError, match=type(leaf).__name__):
        space_to_json(leaf)


def test_an_empty_box_is_refused() -> None:
    with pytest.raises(ConfigError, match="holds no number"):
        check_supported(spaces.Box(0, 1, (0,)), "action")


@pytest.mark.parametrize("text", ["", "[]", '{"type": "Pickle"}', '{"type": "Box"}', '{"type": "Discrete", "n": -1}'])
def test_texts_that_describe_no_space_are_refused(text: str) -> None:
    with pytest.raises(DataError, match="not the description of a space"):
        space_from_json(text)


def test_the_limits_of_a_wide_integer_are_no_bounds() -> None:
    low, high = np.array([0, -5]), np.array([10, np.iinfo(np.int64).max])
    for bounds, expected in (
        (box_bounds(spaces.Box(low, high, dtype=np.int64)), ([0, -5], [10, np.inf])),
        (box_bounds(spaces.Box(-np.inf, np.inf, (2,), np.int32)), ([-np.inf] * 2, [np.inf] * 2)),
        (box_bounds(spaces.Box(0, 65535, (2,), np.uint16)), ([0, 0], [65535] * 2)),
        (box_bounds(spaces.Box(-1, np.inf, (2,), np.float32)), ([-1, -1], [np.inf] * 2)),
    ):
        np.testing.assert_array_equal(bounds, expected)
    space = spaces.Dict({"a": spaces.Box(low, high, dtype=np.int64), "b": spaces.Box(0, 9, (2,), np.int64)})
    assert normalized_leaves(space) == ["a"]


def test_boxes_of_floats_and_of_integers_are_not_the_same_outline() -> None:
    floats, narrow = spaces.Box(0, 1, (8, 8, 3), np.float32), spaces.Box(-9, 9, (8, 8, 3), np.float64)
    integers, bytes_ = spaces.Box(0, 9, (8, 8, 3), np.int64), spaces.Box(0, 255, (8, 8, 3), np.uint8)
    assert space_outline(floats) == space_outline(narrow) == {"": "Box(8, 8, 3) of floats"}
    assert space_outline(integers) == space_outline(bytes_) == {"": "Box(8, 8, 3) of integers"}


def test_leaves_without_their_space_become_a_dict_of_the_same_paths() -> None:
    leaves = leaf_spaces(NESTED)
    assert leaf_spaces(space_from_leaves(leaves)) == leaves
    assert space_from_leaves({"": spaces.Discrete(2)}) == spaces.Discrete(2)


def test_a_space_is_made_around_nested_spaces_in_their_order() -> None:
    inner = spaces.Dict({"x": spaces.Discrete(4)})
    made = space_of({"b": (spaces.Discrete(2), inner), "a": spaces.Discrete(3)})
    assert list(leaf_spaces(made)) == ["b/0", "b/1/x", "a"]
    assert made == spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Tuple([spaces.Discrete(2), inner])})
    assert space_of(inner) is inner


@pytest.mark.parametrize(
    "text",
    [
        '{"type": "Box", "shape": [10000000000], "dtype": "float32", "low": 0, "high": 1}',
        '{"type": "MultiBinary", "shape": [100000, 100000]}',
        '{"type": "Tuple", "members": [' * 2000,
        '{"type": "Box", "shape": [2], "dtype": "float32", "low": 1e999, "high": [1, 2, 3]}',
        '{"type": "Discrete", "n": 1e999, "start": 0, "dtype": "int64"}',
        "[]",
    ],
    ids=["terabytes", "rows", "nested", "bounds", "infinite", "list"],
)
def test_a_description_made_to_do_harm_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="not the description of a space"):
        space_from_json(text)


PAIR, CHOICE = np.array([1, 2], np.float32), spaces.Discrete(2)


@pytest.mark.parametrize(
    ("text", "space"),
    [
        ("Discrete(3, start=-1)", spaces.Discrete(3, start=-1)),
        ("MultiDiscrete([2 3])", spaces.MultiDiscrete([2, 3])),  # as it is printed
        ("MultiBinary([2, 3])", spaces.MultiBinary([2, 3])),
        ("Box(-inf, inf, (2,), float32)", spaces.Box(-np.inf, np.inf, (2,), np.float32)),
        (
            "Box([-1. -2.], [1. 2.], (2,), float32)",
            spaces.Box(np.array([-1, -2], np.float32), np.array([1, 2], np.float32)),
        ),
        (
            "Dict({'a 1 2': Discrete(2), \"b 1 2\": Discrete(3)})",
            spaces.Dict({"a 1 2": CHOICE, "b 1 2": spaces.Discrete(3)}),
        ),
        ("Dict({'a': Tuple([Discrete(2)])})", spaces.Dict({"a": spaces.Tuple([spaces.Discrete(2)])})),
    ],
)
def test_a_space_is_read_as_python_writes_it(text: str, space: gym.Space[Any]) -> None:
    assert space_from_text(text) == space


SMALL: list[Any] = [np.bool_, np.int8, np.int16, np.uint16, np.int32, np.uint32]
WIDE: list[Any] = [np.int64, np.float16, np.float32, np.float64]
INFINITE = np.array([[0.0, -np.inf], [-np.inf, 0.0]], np.float32)
TABLE, FLAGS = np.array([[2, 3], [4, 2]]), np.array([[False, True], [True, True]])
PRINTED: list[gym.Space[Any]] = [
    *(spaces.Box(0, 1, (3,), dtype) for dtype in SMALL),
    *(spaces.Box(-5, 9, (3,), dtype) for dtype in WIDE),
    spaces.Box(FLAGS[0], FLAGS[1], dtype=SMALL[0]),
    spaces.Box(INFINITE, np.full((2, 2), np.inf, np.float32)),
    spaces.Box(np.array([0, -np.inf], np.float32), np.array([np.inf, 0], np.float32)),
    spaces.Box(-1, 1, ()),
    spaces.Discrete(3, start=-5, dtype=np.int32),
    spaces.Discrete(3, dtype=np.uint8),
    spaces.MultiDiscrete(TABLE),
    spaces.MultiDiscrete([2, 3], start=[5, -1]),
    spaces.MultiBinary((2, 3)),
]


@pytest.mark.parametrize("space", PRINTED, ids=str)
def test_a_space_is_read_as_it_is_printed(space: gym.Space[Any]) -> None:
    found = space_from_text(str(space))
    assert found == space
    assert found.dtype == space.dtype


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "Discrete",
        "Discrete(0)",
        "Text(4)",
        "Discrete(3).sample()",
        "__import__('os').getcwd()",
        "(" * 500,
        "Box(0, 1, (99999, 99999))",
        "Discrete(**{'n': 3})",
        "\x00",
    ],
)
def test_a_text_that_makes_no_space_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="makes no space"):
        space_from_text(text)


def test_a_flat_dict_has_the_outline_of_the_nested_space_it_stands_for() -> None:
    """Vector environments of Stable-Baselines3 have one of paths; an evaluation compares it with itself and others."""
    vector, index = spaces.Box(-1, 1, (2,)), spaces.Discrete(3)
    nested = spaces.Dict({"a": vector, "t": spaces.Tuple((index, vector))})
    flat = spaces.Dict({"a": vector, "t/0": index, "t/1": vector})
    assert space_outline(flat) == space_outline(nested)
    assert not differing_spaces((flat, index), (flat, index))
    assert [role for role, *_ in differing_spaces((flat, index), (vector, index))] == ["observation"]
