"""Which Boxes are pictures, for a convolution, and how they lie in memory. H height, W width, C channels, N frames."""

import math
import warnings
from typing import NamedTuple

import numpy as np
from gymnasium import spaces

from rltransformers.core.errors import ConfigError
from rltransformers.core.spaces import Space, box_bounds

MIN_SIDE = 8
"""Pixels of a picture that is known by its shape alone; less is a small grid of numbers, or a window of steps."""
MAX_NUMBERS = 4096  # of a Box of 3 axes and more, beyond which a linear map of all of them is worth a warning


class Picture(NamedTuple):
    """How a Box holds a picture: [H, W], or [H, W, C] or [C, H, W], or N of these in front of each other.

    Attributes:
        channels_first: [C, H, W] rather than [H, W, C].
        largest: what numbers are divided by: 255 for bytes and for floats in [0, 255], the largest bound of other
            integers; 1 for other floats, which are taken as they are.
    """

    channels_first: bool
    largest: float

    def channels_height_width(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Channels of all frames together, height and width of a leaf of this shape."""
        if len(shape) == 2:
            return 1, shape[0], shape[1]
        *frames, first, second, third = shape
        channels, height, width = (first, second, third) if self.channels_first else (third, first, second)
        return math.prod(frames) * channels, height, width


def is_image(space: Space) -> bool:
    """Whether the leaf is a picture in bytes, of 2 or 3 axes."""
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3)


def picture_of(space: Space, path: str = "") -> Picture | None:
    """The picture that a leaf is taken for; None for numbers.

    Bytes (uint8) of 2 or 3 axes always are one. Floats of 3 axes, and bytes and floats of 4 axes, of which the first
    counts frames, are one by their shape: the channels, the shorter of the first and the last axis of a frame (of
    equals the last), are fewer than the pixels of either side, and both sides have at least ``MIN_SIDE``.

    Warns:
        UserWarning: where only the shape decided, and where many numbers of 3 axes and more are no picture.
    """
    if not isinstance(space, spaces.Box):
        return None
    if is_image(space):
        return as_picture(space, path)
    axes, floats = len(space.shape), np.issubdtype(space.dtype, np.floating)
    if axes in (3, 4) if floats else axes == 4 and space.dtype == np.uint8:
        picture = as_picture(space, path)
        channels, height, width = picture.channels_height_width(space.shape[-3:])
        if min(height, width) >= max(MIN_SIDE, channels + 1):
            order = "[C, H, W]" if picture.channels_first else "[H, W, C]"
            stack = f"{space.shape[0]} frames of " if axes == 4 else ""
            _warn(space, path, f"as a picture, {stack}{order}, through a convolution", "image", "vector")
            return picture
    if axes >= 3 and math.prod(space.shape) > MAX_NUMBERS:
        _warn(space, path, f"as {math.prod(space.shape):,} numbers, through a linear map", "vector", "image")
    return None


def as_picture(space: Space, path: str = "", channels: str | None = None) -> Picture:
    """The leaf as a picture; ``channels`` is "first", "last" or None for the shorter axis. ConfigError for others."""
    if not isinstance(space, spaces.Box) or len(space.shape) not in (2, 3, 4):
        raise ConfigError(
            f"encoder 'image' is for Boxes [H, W], [H, W, C], [C, H, W] and stacks of these, and the observation"
            f"{f' at {path!r}' if path else ''} is {space}; take another encoder"
        )
    first = len(space.shape) > 2 and space.shape[-3] < space.shape[-1]
    return Picture(first if channels is None else channels == "first", _largest(space))


def integer_scale(space: spaces.Box) -> float:
    """1 for floating Boxes; for integer Boxes the largest bound, so that bytes and counters arrive near 1.

    An integer without bounds, which ``box_bounds`` describes, does not count.
    """
    if not np.issubdtype(space.dtype, np.integer):
        return 1.0
    bounds = np.abs(np.stack(box_bounds(space)))
    return float(np.max(bounds, initial=1.0, where=np.isfinite(bounds)))


def _largest(space: spaces.Box) -> float:
    if space.dtype == np.uint8:
        return 255.0
    if np.issubdtype(space.dtype, np.integer):
        return integer_scale(space)
    return 255.0 if (space.low == 0).all() and (space.high == 255).all() else 1.0


def _warn(space: spaces.Box, path: str, taken: str, same: str, other: str) -> None:
    where = f"the observation{f' at {path!r}' if path else ''}, a Box of {space.dtype} {space.shape},"
    leaves = "policy_kwargs={'observation': {'leaves': {%r: %r}}}"
    warnings.warn(
        f"{where} is read {taken}; say so with {leaves % (path, same)}, or take it as the other with "
        f"{other!r} in its place",
        stacklevel=2,
    )
