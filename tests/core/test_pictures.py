"""Which Boxes go through a convolution, by a rule of shapes, and what a user is told."""

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rltransformers.core.errors import ConfigError
from rltransformers.core.pictures import Picture, as_picture, is_image, picture_of

INF = np.inf


def box(*shape: int, dtype: type = np.float32, low: float = 0.0, high: float = 1.0) -> spaces.Box:
    return spaces.Box(low, high, shape, dtype)


@pytest.mark.parametrize(
    ("space", "expected", "size"),
    [
        (box(64, 48, 3), Picture(False, 1.0), (3, 64, 48)),
        (box(3, 64, 48), Picture(True, 1.0), (3, 64, 48)),
        (box(64, 48, 3, high=255.0), Picture(False, 255.0), (3, 64, 48)),
        (box(64, 48, 3, low=-INF, high=INF), Picture(False, 1.0), (3, 64, 48)),
        (box(64, 48, 12), Picture(False, 1.0), (12, 64, 48)),
        (box(5, 9, 8), Picture(True, 1.0), (5, 9, 8)),
        (box(4, 64, 48, 3), Picture(False, 1.0), (12, 64, 48)),
        (box(4, 3, 64, 48, dtype=np.uint8, high=255), Picture(True, 255.0), (12, 64, 48)),
    ],
)
def test_shapes_of_pictures_are_known_and_said(
    space: spaces.Box, expected: Picture, size: tuple[int, int, int]
) -> None:
    with pytest.warns(UserWarning, match=r"as a picture.*'leaves': \{'eye': 'image'\}.*'vector'"):
        assert picture_of(space, "eye") == expected
    assert expected.channels_height_width(space.shape) == size


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (box(7, 7, 3, dtype=np.uint8, high=255), Picture(False, 255.0)),
        (box(4, 84, 84, dtype=np.uint8, high=255), Picture(True, 255.0)),
        (box(20, 30, dtype=np.uint8, high=255), Picture(False, 255.0)),
        (box(7, 7, 3), None),  # a small grid of numbers
        (box(10, 10, 10), None),  # no axis is that of the channels
        (box(50, 6), None),  # a window of steps
        (box(12, 12, 3, dtype=np.int32, high=9), None),
        (spaces.MultiBinary([9, 9, 3]), None),
    ],
)
def test_bytes_are_as_they_were_and_nobody_is_told(space: gym.Space[Any], expected: Picture | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert picture_of(space) == expected


def test_many_numbers_that_are_no_picture_are_said() -> None:
    with pytest.warns(UserWarning, match=r"32,768 numbers.*'image' in its place"):
        assert picture_of(box(32, 32, 32)) is None


def test_a_user_may_say_which_axis_holds_channels() -> None:
    planes = box(8, 8, 111)
    assert as_picture(planes).channels_first
    assert as_picture(planes, channels="last").channels_height_width(planes.shape) == (111, 8, 8)
    assert as_picture(box(16, 16, dtype=np.int32, high=9)).largest == 9.0
    with pytest.raises(ConfigError, match="'image' is for Boxes"):
        as_picture(box(5))


def test_images_are_byte_boxes_of_two_or_three_dimensions() -> None:
    assert is_image(spaces.Box(0, 255, (84, 84), np.uint8))
    assert is_image(spaces.Box(0, 255, (3, 8, 9), np.uint8))
    assert not is_image(spaces.Box(0, 255, (9,), np.uint8))
    assert not is_image(spaces.Box(0, 1, (8, 9, 3), np.float32))
