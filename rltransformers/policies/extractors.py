"""Feature extractors of Stable-Baselines3 as encoders of observations. W token width, F features."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first, preprocess_obs
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecTransposeImage
from torch import Tensor, nn

from rltransformers.core.errors import ConfigError, did_you_mean, one_line
from rltransformers.core.spaces import Space, leaf_spaces
from rltransformers.policies.registered import check_encoder

Extractor = str | type[BaseFeaturesExtractor]


class FeaturesExtractor(nn.Module):
    """A feature extractor, and a linear map of its features to a token: leaves by path to [..., W].

    The extractor gets what Stable-Baselines3 would give it: images with their channels first and divided by 255,
    classes as one-hot rows, everything else as floats. A nested observation is one flat Dict, keyed by path.

    Raises:
        ConfigError: it refuses space or options, does not give ``features_dim`` numbers per row, or computes something
            else in training than in acting.
    """

    def __init__(self, space: Space, width: int, extractor: Extractor, options: Mapping[str, Any]) -> None:
        super().__init__()
        kind = extractor_class(extractor)
        what = f"features_extractor_class {kind.__name__}"
        inputs = {path: LeafInput(leaf) for path, leaf in leaf_spaces(space).items()}
        self.paths, self.inputs = tuple(inputs), nn.ModuleList(inputs.values())
        self.axes = len(inputs[self.paths[0]].shape)
        given = {path: each.shown for path, each in inputs.items()}
        self.space: Any = given[""] if "" in given else spaces.Dict(given)
        try:
            self.extractor = kind(self.space, **options)
        except (TypeError, ValueError, AssertionError, RuntimeError, KeyError) as error:
            hint = "; rename this key of the observation" if isinstance(error, KeyError) else ""  # a name of torch
            raise ConfigError(f"{what} refuses {self.space} with {dict(options)}: {one_line(error)}{hint}") from error
        features = self.extractor.features_dim
        example = {path: _example(leaf) for path, leaf in given.items()}
        check_encoder(self.extractor, self.features, example, features, what)
        self.linear = nn.Linear(features, width)

    def forward(self, leaves: Tensor | Mapping[str, Tensor]) -> Tensor:
        values = {"": leaves} if isinstance(leaves, Tensor) else leaves
        first = values[self.paths[0]]
        lead = first.shape[: first.dim() - self.axes]
        rows = {path: each(values[path]) for path, each in zip(self.paths, self.inputs, strict=True)}
        return self.linear(self.features(rows)).reshape(*lead, -1)

    def features(self, rows: Mapping[str, Tensor]) -> Tensor:
        """What the extractor makes of rows [N, ...] by path: [N, F]."""
        return self.extractor(preprocess_obs(rows[""] if "" in rows else dict(rows), self.space))


class LeafInput(nn.Module):
    """A leaf [..., *leaf shape] in the form of ``shown``, a space that Stable-Baselines3 knows, as rows [N, ...]."""

    start: Tensor | None

    def __init__(self, leaf: Space) -> None:
        super().__init__()
        self.shape = tuple(leaf.shape or ())
        start = None
        self.shown: Space = leaf
        self.moved = False
        if isinstance(leaf, spaces.Discrete):
            self.shown, start = spaces.Discrete(int(leaf.n)), torch.as_tensor(int(leaf.start))
        elif isinstance(leaf, spaces.MultiDiscrete):
            self.shown, start = spaces.MultiDiscrete(leaf.nvec.reshape(-1)), torch.as_tensor(leaf.start.reshape(-1))
        elif isinstance(leaf, spaces.Box) and is_image_space(leaf) and not is_image_space_channels_first(leaf):
            self.shown, self.moved = VecTransposeImage.transpose_space(leaf), True
        self.register_buffer("start", start, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(math.prod(x.shape[: x.dim() - len(self.shape)]), *self.shape)
        if self.start is not None:
            return rows.long().reshape(rows.shape[0], *self.start.shape) - self.start
        return rows.movedim(-1, -3) if self.moved else rows


def _example(leaf: Space) -> Tensor:
    """Two rows: zeros, of classes the first and, where there is one, the second."""
    zeros = torch.zeros(2, *(leaf.shape or ()))
    if not isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete):
        return zeros
    sizes = torch.as_tensor(leaf.n if isinstance(leaf, spaces.Discrete) else leaf.nvec)
    return torch.stack([torch.zeros_like(sizes), 1 % sizes])


def extractor_class(extractor: Extractor) -> type[BaseFeaturesExtractor]:
    """The class that a setting names: by itself, or as the newest one of that name that this program has defined.

    Nothing is imported for it: a name in a file chooses among the classes that are there. Raises ConfigError for none.
    """
    if isinstance(extractor, type) and issubclass(extractor, BaseFeaturesExtractor):
        return extractor
    known = {each.__name__: each for each in subclasses(BaseFeaturesExtractor)}
    if extractor not in known:
        raise ConfigError(
            f"features_extractor_class {extractor!r} is no subclass of BaseFeaturesExtractor that this program knows; "
            f"{did_you_mean(str(extractor), known)}; import the module that defines it first"
        )
    return known[extractor]


def subclasses(base: type) -> list[type]:
    """All classes made from ``base``, the older ones first where they have one parent.

    Those that torch makes while it traces a module are left out: each has the name of the class that it stands for.
    """
    found: list[type] = []
    each: type
    for each in base.__subclasses__():
        if not any(parent.__module__.startswith("torch.fx.") for parent in each.__mro__):
            found += [each, *subclasses(each)]
    return found
