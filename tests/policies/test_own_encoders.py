"""Encoders that users bring: registered ones per leaf, feature extractors of Stable-Baselines3, chosen pictures."""

import gc
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.preprocessing import preprocess_obs
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, CombinedExtractor, NatureCNN
from torch import Tensor, nn

from rltransformers.core.errors import ConfigError
from rltransformers.policies import register_encoder
from rltransformers.policies.encoders import ImageEncoder, ObservationEncoder, VectorEncoder
from rltransformers.policies.extractors import FeaturesExtractor, extractor_class
from rltransformers.policies.observed import read_observation
from rltransformers.policies.registered import read_leaves

WIDTH = 5


class Squares(nn.Module):
    """Counts its rows in ``seen``."""

    def __init__(self, space: spaces.Box, width: int, power: int = 2) -> None:
        super().__init__()
        self.power, self.linear = power, nn.Linear(int(np.prod(space.shape)), width)

    def forward(self, x: Tensor) -> Tensor:
        assert x.dim() == 3
        found: Tensor = self.linear(x.flatten(1) ** self.power)
        return found


class Distances(BaseFeaturesExtractor):
    """Reads whatever there is as one row."""

    def __init__(self, observation_space: gym.Space[Any], features_dim: int = 7) -> None:
        super().__init__(observation_space, features_dim)
        self.linear = nn.Linear(spaces.utils.flatdim(observation_space), features_dim)

    def forward(self, observations: Tensor) -> Tensor:
        found: Tensor = self.linear(observations.flatten(1)).relu()
        return found


register_encoder("squares of a test", Squares)
SPACE = spaces.Dict({"grid": spaces.Box(-1, 1, (2, 3)), "place": spaces.Box(-1, 1, (4,))})


def test_a_registered_encoder_reads_its_leaf_whatever_axes_lead() -> None:
    chosen = read_leaves({"grid": {"name": "squares of a test", "power": 3}})
    encoder = ObservationEncoder(SPACE, WIDTH, chosen)
    leaves = {"grid": torch.randn(6, 2, 2, 3), "place": torch.randn(6, 2, 4)}
    own, place = encoder.leaf_encoders
    expected = own.inside.linear(leaves["grid"].flatten(2) ** 3) + place(leaves["place"])  # type: ignore[union-attr, operator]  # a Squares
    torch.testing.assert_close(encoder(leaves), expected / np.sqrt(2))
    assert read_leaves({path: each.to_dict() for path, each in chosen.items()}) == chosen


class Flat(nn.Module):
    """A linear layer over all numbers, and a function of rows behind it."""

    def __init__(self, width: int, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(6, width), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.linear(x.flatten(1)))


class Forgetful(nn.Module):
    """Drops by a function, which is no part that could be seen."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(6, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(self.linear(x.flatten(1)), 0.2, self.training)


class Few(nn.Module):
    """Knows a class alone."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(1, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(x.flatten(1)[:, -1].long())


class To(nn.Module):
    """Of another type."""

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.kind)


def test_what_does_not_fit_is_refused_with_the_reason() -> None:
    def bad(make: Any, reason: str) -> None:
        register_encoder("bad one of a test", make)
        with pytest.raises(ConfigError, match=reason):
            ObservationEncoder(SPACE, WIDTH, read_leaves({"grid": "bad one of a test"}))

    bad(
        lambda space, width: nn.Sequential(nn.Flatten(), nn.Linear(6, width + 1)),
        r"\[N, 5\] .*; of two rows .* \(2, 6\)",
    )
    bad(lambda space, width: nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(6, width)), "Dropout at '1'")
    bad(lambda space, width: nn.Sequential(nn.BatchNorm1d(2), nn.Flatten(), nn.Linear(6, width)), "BatchNorm1d")
    for part in (nn.LSTM(3, 5, 2, dropout=0.5), nn.MultiheadAttention(5, 1, 0.5), nn.RReLU()):
        bad(lambda space, width, part=part: nn.Sequential(nn.Flatten(), part), f"{type(part).__name__} at '1'")
    bad(lambda space, width: nn.Sequential(nn.InstanceNorm1d(2, track_running_stats=True)), "InstanceNorm1d at '0'")
    with pytest.raises(ConfigError, match=r"name must be a text, got \[\]"):
        register_encoder([], Forgetful)  # type: ignore[arg-type]
    bad(lambda space, width: Forgetful(width), "computes other numbers in training than in evaluation mode")
    for function, reason in (
        (
            lambda x: x + 1e-2 * torch.randn_like(x),
            "other numbers in training than in evaluation mode.*leave out noise",
        ),
        (lambda x: x - x.mean(0), "of a row alone than beside another one.*compute each row by itself"),
        (lambda x: x / x.norm(), "of a row alone than beside another one"),
    ):
        bad(lambda space, width, function=function: Flat(width, function), reason)
    for kind in (torch.float64, torch.float16):
        bad(lambda space, width, kind=kind: nn.Sequential(nn.Flatten(), nn.Linear(6, width), To(kind)), f"of {kind}")
    bad(lambda space, width: nn.Linear(7, width), "fails on two rows of zeros")
    bad(lambda space, width: Few(), "fails on rows of numbers up to 1: index")
    bad(lambda space: nn.Identity(), "was refused by what makes it")
    bad(lambda space, width: 3, "must make a module")
    with pytest.raises(ConfigError, match="no encoder is registered as 'squares of tests'; did you mean"):
        read_leaves({"grid": "squares of tests"})
    with pytest.raises(ConfigError, match="an encoder of this package"):
        register_encoder("image", Squares)
    with pytest.raises(ConfigError, match="'gird' is no leaf"):
        read_observation({"leaves": {"gird": "vector"}}).encoder(SPACE, WIDTH)
    for name, leaf in (("index", "grid"), ("image", "place")):
        with pytest.raises(ConfigError, match=f"encoder {name!r}"):
            ObservationEncoder(SPACE, WIDTH, read_leaves({leaf: name}))


def test_a_chosen_picture_needs_no_warning_and_a_vector_no_convolution() -> None:
    space = spaces.Box(0, 1, (12, 10, 3))
    (image,) = ObservationEncoder(space, WIDTH, read_leaves({"": "image"})).leaf_encoders
    (vector,) = ObservationEncoder(space, WIDTH, read_leaves({"": "vector"})).leaf_encoders
    assert isinstance(image, ImageEncoder)
    assert isinstance(vector, VectorEncoder)
    with pytest.warns(UserWarning, match="as a picture"):
        (taken,) = ObservationEncoder(space, WIDTH).leaf_encoders
    assert isinstance(taken, ImageEncoder)


@pytest.mark.parametrize("first", [True, False])
def test_a_stack_of_frames_is_a_picture_of_many_channels(first: bool) -> None:
    frames = torch.rand(6, 2, 4, 3, 12, 10)
    shape = (4, 3, 12, 10) if first else (4, 12, 10, 3)
    torch.manual_seed(0)
    stacked = ObservationEncoder(spaces.Box(0, 1, shape), WIDTH, read_leaves({"": "image"}))
    torch.manual_seed(0)
    flat = ObservationEncoder(
        spaces.Box(0, 1, (12, 12, 10)), WIDTH, read_leaves({"": {"name": "image", "channels": "first"}})
    )
    given = frames if first else frames.movedim(3, -1)
    torch.testing.assert_close(stacked(given), flat(frames.flatten(2, 3)))


def test_floats_of_255_are_divided_and_others_are_not() -> None:
    picture = torch.rand(2, 12, 10, 3)
    encoders = []
    for high in (1.0, 255.0, np.inf):
        torch.manual_seed(0)
        encoders.append(ObservationEncoder(spaces.Box(0.0, high, (12, 10, 3)), WIDTH, read_leaves({"": "image"})))
    unit, bytes_, free = encoders
    torch.testing.assert_close(bytes_(255.0 * picture), unit(picture))
    torch.testing.assert_close(free(picture), unit(picture))


@pytest.mark.parametrize("first", [True, False])
def test_an_extractor_sees_what_stable_baselines3_shows_it(first: bool) -> None:
    shape = (3, 36, 36) if first else (36, 36, 3)
    encoder = FeaturesExtractor(spaces.Box(0, 255, shape, np.uint8), WIDTH, NatureCNN, {"features_dim": 9})
    pictures = torch.randint(0, 256, (4, 2, 3, 36, 36), dtype=torch.uint8)
    theirs = encoder.linear(encoder.extractor(pictures.flatten(0, 1).float() / 255.0)).unflatten(0, (4, 2))
    torch.testing.assert_close(encoder(pictures if first else pictures.movedim(2, -1)), theirs)


def test_nested_observations_are_one_dict_of_paths() -> None:
    space = spaces.Dict(
        {
            "body": spaces.Dict({"arm": spaces.Box(-1, 1, (2, 2)), "tool": spaces.Discrete(3, start=5)}),
            "eye": spaces.Box(0, 255, (36, 40, 3), np.uint8),
            "switches": spaces.MultiBinary(2),
            "wheels": spaces.MultiDiscrete([2, 4], start=[1, -1]),
        }
    )
    encoder = FeaturesExtractor(space, WIDTH, "CombinedExtractor", {"cnn_output_dim": 6})
    assert isinstance(encoder.extractor, CombinedExtractor)
    leaves = {
        "body/arm": torch.randn(7, 3, 2, 2),
        "body/tool": torch.randint(5, 8, (7, 3)),
        "eye": torch.randint(0, 256, (7, 3, 36, 40, 3), dtype=torch.uint8),
        "switches": torch.randint(0, 2, (7, 3, 2), dtype=torch.int8),
        "wheels": torch.stack([torch.randint(1, 3, (7, 3)), torch.randint(-1, 3, (7, 3))], -1),
    }
    token = encoder(leaves)
    assert token.shape == (7, 3, WIDTH)
    rows = {path: leaf.flatten(0, 1) for path, leaf in leaves.items()}
    rows |= {
        "body/tool": rows["body/tool"] - 5,
        "eye": rows["eye"].movedim(-1, 1),
        "wheels": rows["wheels"] - torch.tensor([1, -1]),
    }
    plain = encoder.extractor(preprocess_obs(rows, encoder.space))
    torch.testing.assert_close(token.flatten(0, 1), encoder.linear(plain))


def test_an_extractor_reads_leaves_of_a_single_class() -> None:
    space = spaces.Dict({"lamp": spaces.Discrete(1, start=3), "wheels": spaces.MultiDiscrete([3, 1])})
    encoder = FeaturesExtractor(space, WIDTH, CombinedExtractor, {})
    leaves = {"lamp": torch.tensor([3, 3]), "wheels": torch.tensor([[2, 0], [1, 0]])}
    assert encoder(leaves).shape == (2, WIDTH)


@pytest.mark.parametrize("key", ["a.b", "keys"])
def test_a_key_that_torch_cannot_give_to_a_module_is_to_be_renamed(key: str) -> None:
    space = spaces.Dict({key: spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(2)})
    with pytest.raises(ConfigError, match=rf"CombinedExtractor refuses Dict.*{key}.*; rename this key of the obs"):
        FeaturesExtractor(space, WIDTH, CombinedExtractor, {})


def test_extractors_are_found_by_name_or_refused() -> None:
    assert extractor_class("NatureCNN") is NatureCNN
    assert extractor_class("Distances") is Distances
    with pytest.raises(ConfigError, match=r"Distancse.*did you mean 'Distances'.*import the module"):
        extractor_class("Distancse")

    class Dropping(Distances):
        def __init__(self, observation_space: gym.Space[Any]) -> None:
            super().__init__(observation_space)
            self.linear = nn.Sequential(self.linear, nn.Dropout(0.1))  # type: ignore[assignment]  # as users do

    with pytest.raises(ConfigError, match="Dropout"):
        FeaturesExtractor(spaces.Box(-1, 1, (3,)), WIDTH, Dropping, {})
    with pytest.raises(ConfigError, match="refuses"):
        FeaturesExtractor(spaces.Box(-1, 1, (3,)), WIDTH, NatureCNN, {})
    with pytest.raises(ConfigError, match="refuses"):
        FeaturesExtractor(spaces.Box(-1, 1, (3,)), WIDTH, Distances, {"featres_dim": 3})


def test_classes_that_torch_makes_while_it_exports_a_network_are_not_taken_for_the_extractor_they_stand_for() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = self.second = Distances(spaces.Box(-1, 1, (3,)))

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.first(x) + self.second(x)
            return found

    gc.disable()  # they live until the next collection, and longer where something points at them
    try:
        torch.export.export(Shared(), (torch.zeros(2, 3),), strict=False)
        assert [each for each in Distances.__subclasses__() if each.__qualname__ == "Distances"]
        assert extractor_class("Distances") is Distances
    finally:
        gc.enable()
