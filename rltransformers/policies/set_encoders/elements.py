"""Which leaf of an observation holds elements, and one token for each of them.

Axes: ... any leading axes, N elements, F numbers of an element, W width.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from gymnasium import spaces
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from rltransformers.backbone.rules import nearest_divisors
from rltransformers.core.errors import ConfigError, did_you_mean
from rltransformers.core.pictures import as_picture, is_image
from rltransformers.core.spaces import Space, leaf_spaces
from rltransformers.policies.encoders import ObservationEncoder
from rltransformers.policies.set_encoders.interface import EncoderOptions, Position, check_table
from rltransformers.positions.interface import sinusoid


@dataclass(frozen=True)
class Layout:
    """How a leaf is cut into elements."""

    count: int  # N
    size: int  # F
    shape: tuple[int, ...]  # of the leaf
    element: Space
    patch: int = 0  # side of the patches of an image; 0 where elements lie one behind the other
    channels_first: bool = False  # of an image
    starts: np.ndarray | None = None  # least symbol of every place, of symbols


def patches_of(image: Shaped[Tensor, "*n"], axes: int, patch: int, channels_first: bool) -> Shaped[Tensor, "*m N F"]:
    """Square patches of images of ``axes`` axes, row by row; a patch lists rows, columns, channels."""
    if axes == 2:
        image = image.unsqueeze(-1)
    elif channels_first:
        image = image.movedim(-3, -1)
    cut = image.unflatten(-3, (-1, patch)).unflatten(-2, (-1, patch))  # ... rows p columns p C
    return cut.movedim(-4, -3).flatten(-3).flatten(-3, -2)


def layout_of(space: Space, options: EncoderOptions) -> Layout:
    """How the leaf holds elements; raise ConfigError with the reason why it does not."""
    size, patch = options.element_size, options.patch
    if not isinstance(space, spaces.Box | spaces.MultiDiscrete):
        raise ConfigError("elements are numbers (Box), symbols (MultiDiscrete) or patches of an image (Box of uint8)")
    if is_image(space) and size is None:
        return _image(space, patch)
    symbols = isinstance(space, spaces.MultiDiscrete)
    if patch is not None:
        what = "and this leaf holds symbols" if symbols else "which are uint8 of 2 or 3 axes"
        raise ConfigError(f"patch is for images, {what}")
    shape = tuple(space.nvec.shape if isinstance(space, spaces.MultiDiscrete) else space.shape)
    if len(shape) not in (1, 2):
        what = "symbols are [N] or [N, F]" if symbols else "elements are [N, F], or flat with element_size"
        raise ConfigError(f"{what}, and its shape is {shape}")
    if len(shape) == 1 and size is None and not symbols:
        raise ConfigError("it is flat: set element_size to the numbers of an element")
    count, size = _counted(shape, size or 1 if len(shape) == 1 else size)
    if isinstance(space, spaces.MultiDiscrete):
        starts = space.start.reshape(count, size)
        element = spaces.MultiDiscrete(space.nvec.reshape(count, size).max(0))
        return Layout(count, size, shape, element, starts=starts)
    if np.issubdtype(space.dtype, np.integer):
        return Layout(count, size, shape, spaces.Box(space.low.min(), space.high.max(), (size,), space.dtype))
    return Layout(count, size, shape, spaces.Box(-np.inf, np.inf, (size,)))


def _counted(shape: tuple[int, ...], size: int | None) -> tuple[int, int]:
    """N and F of a leaf of one or two axes."""
    if len(shape) == 2:
        if size not in (None, shape[1]):
            raise ConfigError(f"its elements have {shape[1]} numbers: set element_size ({size}) to {shape[1]}")
        return shape[0], shape[1]
    assert size is not None
    if shape[0] % size:
        near = nearest_divisors(shape[0], size)
        raise ConfigError(f"element_size ({size}) must divide its {shape[0]} numbers; nearest that do: {near}")
    return shape[0] // size, size


def _image(space: Space, patch: int | None) -> Layout:
    shape, picture = tuple(space.shape or ()), as_picture(space)
    if patch is None:
        raise ConfigError(
            "it is an image: set patch to the side of its patches"
            + (f", or element_size to {shape[-1]}, where its rows are the elements" if len(shape) == 2 else "")
        )
    channels, height, width = picture.channels_height_width(shape)
    for name, side in (("height", height), ("width", width)):
        if side % patch:
            near = nearest_divisors(side, patch)
            raise ConfigError(f"patch ({patch}) must divide its {name} ({side}); nearest that do: {near}")
    count, size = (height // patch) * (width // patch), patch * patch * channels
    return Layout(count, size, shape, spaces.Box(0, 255, (size,), np.uint8), patch, picture.channels_first)


def find_leaf(space: Space, options: EncoderOptions) -> tuple[str, Layout]:
    """Path and layout of the leaf that holds the elements; raise ConfigError unless it and its mask are there.

    Without ``leaf`` there must be exactly one that can hold elements.
    """
    leaves = leaf_spaces(space)
    if options.leaf is not None:
        leaves = {options.leaf: _named(leaves, options.leaf, "leaf")}
    layouts, reasons = {}, []
    for path, leaf in leaves.items():
        try:
            layouts[path] = layout_of(leaf, options)
        except ConfigError as reason:
            reasons.append(f"{path!r} ({leaf}): {reason}")
    if len(layouts) > 1:
        raise ConfigError(f"encoder: several leaves can hold elements: set leaf to one of {list(layouts)}")
    if not layouts:
        holds = "no leaf of the observation holds" if options.leaf is None else "leaf holds no"
        raise ConfigError(f"encoder: {holds} elements: {'; '.join(reasons) or 'there is none'}")
    ((found, layout),) = layouts.items()
    if options.mask is not None:
        mask = _named(leaf_spaces(space), options.mask, "mask")
        if not isinstance(mask, spaces.MultiBinary) or mask.shape != (layout.count,):
            raise ConfigError(
                f"encoder: mask {options.mask!r} must be MultiBinary({layout.count}), one bit per element, got {mask}; "
                "leave mask out where all elements exist"
            )
    return found, layout


def _named(leaves: Mapping[str, Space], path: str, option: str) -> Space:
    if path not in leaves:
        known = did_you_mean(path, map(repr, leaves) if "" in leaves else leaves)
        raise ConfigError(f"encoder: {option} {path!r} is no leaf of the observation; {known}")
    return leaves[path]


class Elements(nn.Module):
    """One token of ``width`` numbers for every element, and which elements exist.

    Numbers go through one linear map that all elements share; integers are divided by the largest bound of the leaf,
    bytes of an image by 255. Symbols are embedded with a table per feature, whose start is subtracted. What stands at
    elements that do not exist is not looked at: it may even be NaN.
    """

    starts: Tensor | None
    places: Tensor | None

    def __init__(self, space: Space, width: int, options: EncoderOptions) -> None:
        super().__init__()
        self.leaf, self.layout = find_leaf(space, options)
        self.mask = options.mask
        self.encoder = ObservationEncoder(self.layout.element, width)
        starts = self.layout.starts
        self.register_buffer("starts", None if starts is None else torch.as_tensor(starts).long(), persistent=False)
        self._place(options.position, width)

    @property
    def count(self) -> int:
        return self.layout.count

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.leaf,) if self.mask is None else (self.leaf, self.mask)

    def _place(self, position: Position, width: int) -> None:
        """A row per place: of N(0, 1 / 4) to be learned, or of sines and cosines.

        Devlin et al. 2018 draw places from N(0, 0.02^2), which would drown among numbers of order 1: a policy did not
        learn to tell two observations apart that differ in the place of a 1.
        """
        if position == "learned":
            check_table("the table of learned positions", self.count, width, "use larger elements, or position: none")
            self.places = nn.Parameter(0.5 * torch.randn(self.count, width))
            return
        rows = sinusoid(torch.arange(self.count), width, torch.zeros(())) if position == "sinusoidal" else None
        self.register_buffer("places", rows, persistent=False)

    def forward(self, leaves: Mapping[str, Tensor]) -> tuple[Float[Tensor, "*n N W"], Bool[Tensor, "*n N"]]:
        x, exists = self.present(leaves)
        tokens = self.encoder(x)
        return tokens if self.places is None else tokens + self.places, exists

    def present(self, leaves: Mapping[str, Tensor]) -> tuple[Shaped[Tensor, "*n N F"], Bool[Tensor, "*n N"]]:
        """The elements, 0 where one does not exist, and which exist."""
        x = self.cut(leaves[self.leaf])
        exists = torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device)
        if self.mask is not None:
            exists = leaves[self.mask] != 0
        return x.masked_fill(~exists[..., None], 0), exists

    def cut(self, leaf: Shaped[Tensor, "*n"]) -> Shaped[Tensor, "*m N F"]:
        layout = self.layout
        if layout.patch:
            return patches_of(leaf, len(layout.shape), layout.patch, layout.channels_first)
        lead = leaf.shape[: leaf.dim() - len(layout.shape)]
        x = leaf.reshape(*lead, layout.count, layout.size)
        if self.starts is not None:
            return x.long() - self.starts
        return x if x.is_floating_point() else x.to(torch.get_default_dtype())  # torch fills few types of integers
