"""One seed gives separate, repeatable streams."""

import pytest
import torch

from rltransformers.core.errors import ConfigError
from rltransformers.core.seeding import BRANCHES, numpy_stream, torch_stream


def numbers(seed: int, name: str) -> tuple[float, float]:
    return numpy_stream(seed, name).random(), torch.rand(1, generator=torch_stream(seed, name)).item()


def test_the_same_seed_gives_the_same_streams_and_another_seed_others() -> None:
    for name in BRANCHES:
        assert numbers(7, name) == numbers(7, name)
        assert not set(numbers(7, name)) & set(numbers(8, name))


def test_the_streams_of_one_seed_differ_from_each_other() -> None:
    assert len({number for name in BRANCHES for number in numbers(0, name)}) == 2 * len(BRANCHES)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ConfigError, match="-1"):
        numpy_stream(-1, "action")
