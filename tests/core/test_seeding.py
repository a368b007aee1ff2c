"""One seed gives separate, repeatable streams."""

import pytest
import torch

from rltransformers.core.errors import ConfigError
from rltransformers.core.seeding import STREAMS, generators


def test_the_same_seed_gives_the_same_streams_and_another_seed_others() -> None:
    first, again, other = generators(7), generators(7), generators(8)
    for name in STREAMS:
        a, b, c = (getattr(streams, name) for streams in (first, again, other))
        assert a.seed == b.seed != c.seed
        assert a.numpy.random() == b.numpy.random() != c.numpy.random()
        draws = [torch.rand(1, generator=stream.torch).item() for stream in (a, b, c)]
        assert draws[0] == draws[1] != draws[2]


def test_the_streams_of_one_seed_differ_from_each_other() -> None:
    streams = generators(0)
    assert len({getattr(streams, name).seed for name in STREAMS}) == len(STREAMS)
    assert len({getattr(streams, name).numpy.random() for name in STREAMS}) == len(STREAMS)
    assert len({torch.rand(1, generator=getattr(streams, name).torch).item() for name in STREAMS}) == len(STREAMS)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ConfigError, match="-1"):
        generators(-1)
