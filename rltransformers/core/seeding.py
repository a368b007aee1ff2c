"""One seed, separate random streams: drawing more from one part of a run never shifts another."""

from dataclasses import dataclass

import numpy as np
import torch

from rltransformers.core.errors import ConfigError

STREAMS = ("model", "environment", "data", "action")


@dataclass(frozen=True)
class Stream:
    """The random sources of one part of a run; ``seed`` is for interfaces that take a plain integer (below 2**31)."""

    seed: int
    numpy: np.random.Generator
    torch: torch.Generator


@dataclass(frozen=True)
class Generators:
    """Independent streams for weights and dropout, environments, batches, and sampled actions."""

    model: Stream
    environment: Stream
    data: Stream
    action: Stream


def generators(seed: int | None, device: torch.device | str = "cpu") -> Generators:
    """Four streams spawned from one seed (``numpy.random.SeedSequence``); ``None`` draws the seed from the system.

    Torch generators live on ``device``. The same seed gives the same streams on the same device type.

    Raises:
        ConfigError: for a negative seed.
    """
    if seed is not None and seed < 0:
        raise ConfigError(f"seed must be 0 or larger, got {seed}; or None for a random one")
    children = np.random.SeedSequence(seed).spawn(len(STREAMS))
    return Generators(**{name: _stream(child, device) for name, child in zip(STREAMS, children, strict=True)})


def step_seed(seed: int, step: int, purpose: str) -> int:
    """An independent seed for every step and purpose, so that nothing but the step count has to be saved to resume."""
    words = [seed, step, *purpose.encode()]
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> 1)


def episode_noise(seed: int) -> np.random.Generator:
    """Random numbers of the actions sampled in the episode that an evaluation starts from ``seed``.

    They depend on nothing else, neither on the number of environments nor on their order, and are not those that an
    environment draws from the same seed.
    """
    return np.random.default_rng(step_seed(seed, 0, "action"))


def _stream(sequence: np.random.SeedSequence, device: torch.device | str) -> Stream:
    torch_seed, integer = (int(word) for word in sequence.generate_state(2, np.uint64))
    torch_generator = torch.Generator(device).manual_seed(torch_seed % 2**63)
    return Stream(integer % 2**31, np.random.default_rng(sequence), torch_generator)
