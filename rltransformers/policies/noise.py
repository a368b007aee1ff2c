"""Random numbers of sampled actions, drawn with numpy: the same on every device. B rows, U numbers of a row."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rltransformers.core.errors import ConfigError
from rltransformers.policies.action_heads import ActionHead

NoiseType = type[np.float32] | type[np.float64]


class Noise(NamedTuple):
    """Numbers that sampling one leaf of the action takes: standard normal ones, or uniform ones in [0, 1)."""

    numbers: int
    normal: bool


def noise_of(head: ActionHead) -> list[Noise]:
    """Random numbers that sampling an action takes, by leaf."""
    return [Noise(leaf.draws, leaf.normal_noise) for leaf in head.by_path.values()]


def draw_noise(
    noise: Sequence[Noise], rows: int, source: np.random.Generator | Sequence[np.random.Generator], kind: NoiseType
) -> NDArray[Any]:
    """Numbers [B, U] of one generator, or of one for each row: then no row changes the numbers of another.

    Raises:
        ConfigError: for another number of generators than rows.
    """
    if isinstance(source, np.random.Generator):
        parts = [
            source.standard_normal((rows, each.numbers), kind)
            if each.normal
            else source.random((rows, each.numbers), kind)
            for each in noise
        ]
        return np.concatenate([np.zeros((rows, 0), kind), *parts], axis=1)
    if len(source) != rows:
        raise ConfigError(f"generators are {len(source)}, the observations are of {rows} environments; give one each")
    return np.concatenate([draw_noise(noise, 1, each, kind) for each in source])
