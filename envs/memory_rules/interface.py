"""The rules of our memory tasks as pure functions on N copies at once; N=1 is the scalar environment.

A state is a dictionary of arrays [N, ...]. An episode is a function of ``draws`` uniform numbers in [0, 1), so one
generator per copy gives the same episodes alone and in a batch.
"""

from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from annotated_types import Ge, Le
from gymnasium import spaces
from numpy.typing import NDArray

from rltransformers.core.ranges import check

Array = NDArray[Any]
State = dict[str, Array]
RIGHT, UP, LEFT, DOWN = range(4)
Length = Annotated[int, Ge(1), Le(10**9)]
"""Of an episode or of a part of it, in steps or cells."""


class RulesOutcome(NamedTuple):
    """Outcome of one step, per copy [N]; ``success`` counts only where the episode ends.

    ``truncated`` ends an episode that could go on; None where no task of this kind does.
    """

    state: State
    reward: Array
    terminated: Array
    success: Array
    truncated: Array | None = None


class Rules(ABC):
    """One task; its fields are annotated with the ranges that an environment checks.

    Stepping a finished copy is harmless and meaningless: whoever steps resets it.

    Attributes:
        draws: how many uniform numbers one episode takes.
        lowest: number of an observation, or of each of its entries; the largest is 1.
    """

    draws: ClassVar[int]
    lowest: ClassVar[float | tuple[float, ...]] = 0.0

    @property
    @abstractmethod
    def horizon(self) -> int:
        """The largest number of steps in an episode."""

    @property
    @abstractmethod
    def entries(self) -> int:
        """Length of an observation."""

    @property
    def actions(self) -> int:
        """How many actions there are."""
        return 4

    @property
    def observation_space(self) -> spaces.Box:
        return spaces.Box(np.full(self.entries, self.lowest, np.float32), 1.0)

    @property
    def action_space(self) -> spaces.Discrete | spaces.Box:
        return spaces.Discrete(self.actions)

    @abstractmethod
    def start(self, uniform: Array) -> State:
        """The first state from uniform numbers [N, draws]."""

    @abstractmethod
    def observe(self, state: State) -> Array: ...

    @abstractmethod
    def step(self, state: State, action: Array) -> RulesOutcome: ...


def whole(uniform: Array, n: int) -> Array:
    """Uniform numbers in [0, 1) as whole numbers 0..n-1."""
    return (uniform * n).astype(np.int64)


def log_uniform(uniform: Array, shortest: int | None, longest: int) -> Array:
    """Uniform numbers in [0, 1) as whole numbers shortest..longest; without a shortest: longest.

    Log-uniform: n with probability log((n + 1) / n) / log((longest + 1) / shortest), about as often as 1 / n.

    What is left of a uniform number after a coin has been read from it is uniform too, and independent of the coin.
    """
    if shortest is None:
        return np.full(len(uniform), longest, np.int64)
    return np.floor(shortest * ((longest + 1) / shortest) ** uniform).astype(np.int64)


def random_bits(seed: Array, place: Array) -> Array:
    """A fair coin for every pair of seed and place: the highest bit of ``random_words``."""
    coin: Array = random_words(seed, place) >> np.uint64(63) == 1
    return coin


def random_shares(words: Array) -> Array:
    """Random words as uniform numbers in [0, 1)."""
    shares: Array = (words >> np.uint64(11)) * 2.0**-53
    return shares


def random_words(seed: Array, place: Array) -> Array:
    """64 random bits for every pair of seed and place, both whole numbers from 0: the same for the same pair.

    What SplitMix64 (Steele et al. 2014) draws at this place, from the seed mixed by it beforehand.
    """
    step = np.uint64(0x9E3779B97F4A7C15)
    begin = _mixed(seed.astype(np.uint64) * step)
    return _mixed(begin + place.astype(np.uint64) * step)


def _mixed(words: Array) -> Array:
    """The finalizer of SplitMix64 on unsigned words of 64 bits."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def check_shortest(name: str, longest: int, shortest: int | None) -> None:
    """Refuse a ``shortest_<name>`` above ``<name>``."""
    if shortest is not None:
        check(longest, Annotated[int, Ge(shortest)], f"{name} with shortest_{name} {shortest}")
