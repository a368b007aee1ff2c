"""What an agent is given is checked leaf by leaf: shapes, numbers, classes; rewards and episode starts."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rltransformers.core.errors import ConfigError, DataError
from rltransformers.core.spaces import LARGEST_LAYER, leaf_spaces
from rltransformers.core.values import check_observations
from rltransformers.policies.action_heads import ActionHead
from rltransformers.policies.encoders import ObservationEncoder
from rltransformers.policies.observations import fit_observation, fit_rewards, fit_starts, fit_vector

SPACE = spaces.Dict(
    {
        "vector": spaces.Box(-1.0, 1.0, (3,), np.float64),
        "image": spaces.Box(0, 255, (5, 4, 3), np.uint8),
        "count": spaces.Discrete(4, start=2),
        "cells": spaces.MultiDiscrete([2, 5]),
        "bits": spaces.MultiBinary(3),
        "steps": spaces.Box(0, 100, (2,), np.int32),
    }
)


def batch(rows: int = 6) -> dict[str, np.ndarray]:
    SPACE.seed(3)
    samples = [SPACE.sample() for _ in range(rows)]
    return {path: np.stack([sample[path] for sample in samples]) for path in SPACE}


FAULTS: list[tuple[str, Any, str]] = [
    ("vector", np.nan, "not finite"),
    ("vector", -np.inf, "not finite"),
    ("vector", 1e39, "not finite"),  # in float32, the type that networks read
    ("image", 256, "outside Box"),
    ("image", -1, "outside Box"),
    ("image", 0.5, "outside Box"),
    ("image", np.nan, "not finite"),
    ("count", 1, "outside Discrete"),
    ("count", 6, "outside Discrete"),
    ("count", 2.5, "outside Discrete"),
    ("count", np.nan, "not finite"),
    ("cells", 5, "outside MultiDiscrete"),
    ("cells", -1, "outside MultiDiscrete"),
    ("bits", 2, "outside MultiBinary"),
    ("bits", 0.5, "outside MultiBinary"),
    ("steps", 2**31, "outside Box"),
    ("steps", 0.5, "outside Box"),
]


@pytest.mark.parametrize(("path", "value", "words"), FAULTS)
def test_a_value_that_the_space_cannot_hold_names_leaf_and_environment(path: str, value: Any, words: str) -> None:
    values: dict[str, Any] = batch()
    wide = np.int64 if isinstance(value, int) else np.float64
    values[path] = values[path].astype(wide)
    values[path].reshape(6, -1)[4, -1] = value
    with pytest.raises(DataError, match=f"observation {path!r} of environment 4 is .*{words}"):
        fit_observation(leaf_spaces(SPACE), values)
    with pytest.raises(DataError, match=f"last observation {path!r} of environment 14 at step 7 is .*{words}"):
        check_observations(leaf_spaces(SPACE), values, "last observation", lambda row: f"{10 + row} at step 7")


def test_members_pass_in_any_type_that_holds_them_and_beyond_the_bounds_of_floats() -> None:
    values = batch()
    values["vector"][:] = 1e30
    for dtype in (None, np.int64, np.float64):
        given = {
            path: value if dtype is None or path == "vector" else value.astype(dtype) for path, value in values.items()
        }
        arrays, batched = fit_observation(leaf_spaces(SPACE), given)
        assert batched
        for path in SPACE:
            np.testing.assert_array_equal(arrays[path], values[path])


@pytest.mark.parametrize("path", list(SPACE))
@pytest.mark.parametrize("dtype", [np.complex128, "U8", object, "datetime64[s]", "timedelta64[s]"])
def test_what_is_no_number_is_no_observation(path: str, dtype: Any) -> None:
    values: dict[str, Any] = batch()
    values[path] = values[path].astype(np.int64).astype(dtype)
    with pytest.raises(DataError, match=f"the observation {path!r} has dtype"):
        fit_observation(leaf_spaces(SPACE), values)
    with pytest.raises(DataError, match=f"observation {path!r}( of environment 0)? has dtype"):
        check_observations(leaf_spaces(SPACE), values)


@pytest.mark.parametrize("path", list(SPACE))
def test_shapes_and_missing_leaves_are_named_even_where_numpy_would_broadcast(path: str) -> None:
    values = batch()
    with pytest.raises(DataError, match=f"observation {path!r} of environment 0 has shape"):
        check_observations(leaf_spaces(SPACE), values | {path: values[path].reshape(6, -1)[:, :1, None]})
    del values[path]
    with pytest.raises(DataError, match=f"lacks {path!r}"):
        check_observations(leaf_spaces(SPACE), values)


def test_leaves_of_different_batches_are_refused() -> None:
    with pytest.raises(DataError, match=r"leaves of the observation have \[5, 6\] rows"):
        fit_observation(leaf_spaces(SPACE), batch() | {"bits": batch(5)["bits"]})


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39])
def test_a_reward_that_is_not_finite_is_refused_where_it_is_read(value: float) -> None:
    start = np.array([False, True, False])
    with pytest.raises(DataError, match="reward of environment 2 is not finite"):
        fit_rewards(np.array([1.0, 2.0, value]), start)
    np.testing.assert_array_equal(fit_rewards(np.array([1.0, value, 3.0]), start), [1.0, 0.0, 3.0])


@pytest.mark.parametrize(
    "values", [[1.0, 2.0], "1.0", ["1.0"] * 3, 1j, None, np.zeros((3, 2)), [[1.0], [2.0, 3.0], [4.0]]]
)
def test_a_vector_has_one_number_per_environment(values: Any) -> None:
    with pytest.raises(DataError, match=r"^reward "):
        fit_vector(values, 3, "reward")


def test_a_vector_may_be_one_number_or_a_column() -> None:
    for values in (2, 2.0, [2.0], np.full(3, 2), np.full((3, 1), 2.0, np.float32)):
        np.testing.assert_array_equal(fit_vector(values, 3, "reward"), [2.0, 2.0, 2.0])


def test_episode_starts_are_flags_of_every_environment() -> None:
    np.testing.assert_array_equal(fit_starts([0, 1, 0.0], 3), [False, True, False])
    np.testing.assert_array_equal(fit_starts(None, 2), [False, False])
    np.testing.assert_array_equal(fit_starts(True, 1), [True])
    for bad in (np.nan, 0.5, 2, "x", None):
        with pytest.raises(DataError, match=r"^episode_start "):
            fit_starts([0, bad, 1], 3)
    with pytest.raises(DataError, match="2 entries for 3 environments"):
        fit_starts([True, False], 3)


HUGE = [
    spaces.Discrete(10**9),
    spaces.MultiDiscrete([7, 10**9, 3]),
    spaces.MultiDiscrete(np.full(10**5, 10**3)),
    spaces.MultiBinary(10**8),
]


@pytest.mark.parametrize("space", HUGE, ids=lambda space: type(space).__name__)
@pytest.mark.parametrize("module", [ObservationEncoder, ActionHead])
def test_a_space_whose_layer_would_fill_the_memory_is_refused(module: Any, space: gym.Space[Any]) -> None:
    with pytest.raises(ConfigError, match=r"space at 'a' is .* MiB, at most 256 are allowed; encode it"):
        module(spaces.Dict({"a": space, "b": spaces.Discrete(2)}), 16)


def test_the_largest_layer_is_counted_by_width() -> None:
    width = 2048
    fits = LARGEST_LAYER // (4 * width)
    with pytest.raises(ConfigError, match="observation space is Discrete"):
        ObservationEncoder(spaces.Discrete(fits + 1), width)
    assert ObservationEncoder(spaces.Discrete(1000), width).width == width
