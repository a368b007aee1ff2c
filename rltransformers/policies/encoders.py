"""Observations of any supported Gymnasium space as one token per step, and the elements that layers may look at.

Every leaf of the space has its own small encoder and the leaf embeddings are summed. A sum of linear maps is the linear
map of the concatenated leaves, so for vectors nothing is lost against concatenation, and no extra layer is needed.
Axes: ... any leading axes, usually [B, T], N elements, W token width.
"""

import math
from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple, TypedDict

import numpy as np
import torch
from gymnasium import spaces
from jaxtyping import Float
from torch import Tensor, nn

from rltransformers.core.errors import ConfigError
from rltransformers.core.pictures import Picture, as_picture, integer_scale, picture_of
from rltransformers.core.ranges import PositiveNumber, check, shown
from rltransformers.core.spaces import Space, check_supported, check_width, leaf_spaces, space_from_leaves, stored_dtype
from rltransformers.core.values import torch_type
from rltransformers.functional.call import EVERY, Context
from rltransformers.policies.registered import BUILT_IN, LeafChoice, OwnEncoder
from rltransformers.policies.set_encoders.interface import Encoded


class Observed(NamedTuple):
    """One token per observation, and its elements where an encoder reads some."""

    token: Float[Tensor, "*n W"]
    elements: Encoded | None

    def at_once(self) -> "Observed":
        """Observations [B] as those of one step, [B, 1]."""
        elements = None if self.elements is None else Encoded(*(each.unsqueeze(1) for each in self.elements))
        return Observed(self.token.unsqueeze(1), elements)

    def context(self, tokens: slice = EVERY) -> Context | None:
        """The elements of observations [B, S] as those of the ``tokens`` of a call."""
        return None if self.elements is None else Context(self.elements.rows, self.elements.exists, tokens)


def observe(encoder: nn.Module | None, elements: nn.Module | None, leaves: Mapping[str, Tensor]) -> Observed:
    """The token: the sum of the leaves' and of what pooling makes of the elements; and the elements."""
    if elements is None:
        assert encoder is not None
        return Observed(encoder(leaves), None)
    found: Encoded = elements(leaves)
    return Observed(found.pooled if encoder is None else encoder(leaves) + found.pooled, found)


def unbounded(space: Space, paths: Collection[str]) -> Space:
    """The space without the bounds of the Boxes at ``paths``, whose values are standardized or in other units."""
    leaves = leaf_spaces(space)
    return space_from_leaves(
        {path: spaces.Box(-np.inf, np.inf, leaf.shape) if path in paths else leaf for path, leaf in leaves.items()}
    )


class ObservationEncoder(nn.Module):
    """One token of ``width`` numbers for every observation: [..., leaf shape] per leaf in, [..., W] out.

    "vector": Boxes (any shape, flattened) and MultiBinary go through a linear map, integers divided by their largest
    bound. "index": Discrete and MultiDiscrete go through embedding tables (the space's ``start`` is subtracted).
    "image": what ``picture_of`` takes for one goes through a convolutional network. Numbers of unit variance give
    tokens of unit variance.

    Args:
        chosen: encoders of leaves by path, of those names or registered ones, in place of those of the rule.

    Raises:
        ConfigError: when a leaf has no encoder, needs one that fills the memory, or does not fit the chosen one.

    Warns:
        UserWarning: where only its shape says whether a Box is an image: which way it was taken, and how to say so.
    """

    def __init__(self, space: Space, width: int, chosen: Mapping[str, LeafChoice] | None = None) -> None:
        super().__init__()
        check_supported(space, "observation")
        leaves, chosen = leaf_spaces(space), chosen or {}
        self.paths = tuple(leaves)
        self.width = width
        self.leaf_encoders = nn.ModuleList(
            _leaf_encoder(leaf, path, width, chosen.get(path)) for path, leaf in leaves.items()
        )
        self.scale = 1.0 / math.sqrt(len(leaves))

    def forward(self, leaves: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Tokens [..., W] from leaves by path ("" for a bare leaf) or from the bare leaf itself."""
        values = {"": leaves} if isinstance(leaves, Tensor) else leaves
        tokens = [encoder(values[path]) for path, encoder in zip(self.paths, self.leaf_encoders, strict=True)]
        return tokens[0] if len(tokens) == 1 else torch.stack(tokens).sum(0) * self.scale


def _leaf_encoder(space: Space, path: str, width: int, chosen: LeafChoice | None) -> nn.Module:
    if chosen is not None and chosen.name not in BUILT_IN:
        example = torch.zeros(2, *(space.shape or ()), dtype=torch_type(stored_dtype(space)))
        return OwnEncoder(space, width, chosen, example + torch.as_tensor(getattr(space, "start", 0)))
    picture = picture_of(space, path) if chosen is None else _chosen_picture(space, path, chosen)
    if picture is not None:
        assert isinstance(space, spaces.Box)
        return ImageEncoder(space, width, picture)
    check_width(space_from_leaves({path: space}), "observation", width)
    if isinstance(space, spaces.Box):
        return VectorEncoder(space.shape, width, integer_scale(space))
    if isinstance(space, spaces.MultiBinary):
        return VectorEncoder(space.shape, width)
    if isinstance(space, spaces.Discrete):
        return IndexEncoder([int(space.n)], [int(space.start)], (), width)
    assert isinstance(space, spaces.MultiDiscrete)
    return IndexEncoder(space.nvec.reshape(-1).tolist(), space.start.reshape(-1).tolist(), space.nvec.shape, width)


def _chosen_picture(space: Space, path: str, chosen: LeafChoice) -> Picture | None:
    """The picture that "image" makes of a leaf; None for "vector" and "index". Raises ConfigError for other leaves."""
    where = f"the observation{f' at {path!r}' if path else ''}"
    classes = isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
    if chosen.name == "image":
        options = check(chosen.options, ImageOptions, f"the options of encoder 'image' of {where}")
        picture = as_picture(space, path, options.get("channels"))
        return picture._replace(largest=options.get("largest", picture.largest))
    if chosen.options:
        raise ConfigError(f"encoder {chosen.name!r} of {where} has no options, got {shown(dict(chosen.options))}")
    if classes != (chosen.name == "index"):
        fitting = "index" if classes else "vector"
        raise ConfigError(f"encoder {chosen.name!r} is not for {where}, which is {space}; take {fitting!r}")
    return None


class VectorEncoder(nn.Module):
    """A linear map of the flattened leaf divided by ``largest``: [..., shape] to [..., W]."""

    def __init__(self, shape: tuple[int, ...], width: int, largest: float = 1.0) -> None:
        super().__init__()
        size = math.prod(shape)
        self.axes = len(shape)
        self.largest = largest
        self.linear = nn.Linear(size, width)
        nn.init.normal_(self.linear.weight, std=1.0 / math.sqrt(size))

    def forward(self, x: Tensor) -> Tensor:
        flat = (x if self.axes == 1 else x.reshape(*x.shape[: x.dim() - self.axes], -1)).to(self.linear.weight.dtype)
        return self.linear(flat if self.largest == 1.0 else flat / self.largest)


class IndexEncoder(nn.Module):
    """The sum of one embedding per index: [..., shape] integers to [..., W]. One table holds all choices in a row.

    Many indices stand for a picture of symbols, of which few change from step to step: n embeddings of variance
    n^-1/2 make tokens of variance n^1/2, so that what changes is not lost beside what is always there.
    """

    offsets: Tensor

    def __init__(self, sizes: list[int], starts: list[int], shape: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.axes = len(shape)
        self.table = nn.Embedding(sum(sizes), width)
        nn.init.normal_(self.table.weight, std=len(sizes) ** -0.25)
        rows_before = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        self.register_buffer("offsets", torch.as_tensor(rows_before - np.asarray(starts)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(*x.shape[: x.dim() - self.axes], -1)
        return self.table(flat.long() + self.offsets).sum(-2)


class ImageEncoder(nn.Module):
    """A convolutional network sized by the image, of numbers divided by ``largest``: [..., *leaf shape] to [..., W].

    From 36 pixels on the layers of Mnih et al. 2015 (Nature 518, "Methods"); below, 3x3 layers that keep small grids
    (MiniGrid's 7x7x3) from vanishing. Frames of a stack are more channels.
    """

    def __init__(self, space: spaces.Box, width: int, picture: Picture) -> None:
        super().__init__()
        self.axes, self.picture = len(space.shape), picture
        channels, height, wide = picture.channels_height_width(space.shape)
        self.layers = _convolutions(channels, min(height, wide))
        with torch.no_grad():
            features = self.layers(torch.zeros(1, channels, height, wide)).shape[1]
        self.linear = nn.Linear(features, width)
        for module in self.layers:
            if isinstance(module, nn.Conv2d):
                nn.init.orthogonal_(module.weight, gain=math.sqrt(2.0))
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]  # these layers are built with a bias

    def forward(self, x: Tensor) -> Tensor:
        lead = x.shape[: x.dim() - self.axes]
        image = x.reshape(-1, *x.shape[x.dim() - self.axes :]).to(self.linear.weight.dtype) / self.picture.largest
        if self.axes == 2:
            image = image.unsqueeze(1)
        elif not self.picture.channels_first:
            image = image.movedim(-1, -3)
        return self.linear(self.layers(image.flatten(1, -3))).reshape(*lead, -1)


class ImageOptions(TypedDict, total=False):
    """Options of an image encoder."""

    channels: Literal["first", "last"]
    largest: PositiveNumber  # what numbers are divided by


def _convolutions(channels: int, side: int) -> nn.Sequential:
    if side >= 36:
        plan = [(32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0)]
    elif side >= 14:
        plan = [(16, 3, 1, 1), (32, 3, 2, 1), (64, 3, 2, 1)]
    else:
        plan = [(16, 3, 1, 1), (32, 3, 2, 1)]
    layers: list[nn.Module] = []
    for out, kernel, stride, padding in plan:
        layers += [nn.Conv2d(channels, out, kernel, stride, padding), nn.ReLU()]
        channels = out
    return nn.Sequential(*layers, nn.Flatten())
