"""Numpy environments that draw the random numbers of a ``TensorVecEnv``, so that both see the same episodes."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from rltransformers.envs.memory_rules.interface import random_shares, random_words
from rltransformers.envs.tensors import TensorVecEnv


class Stream:
    """Random numbers of environment ``row`` with this seed, episode after episode, as numpy's generators give them."""

    def __init__(self, seed: int) -> None:
        self.seed, self.episode = seed, 0

    def random(self, count: int) -> np.ndarray:
        """The numbers of the next episode."""
        self.episode += 1
        word = random_words(np.array([self.seed]), np.array([self.episode]))
        return random_shares(random_words(word, np.arange(1, count + 1)))

    def uniform(self, low: Any, high: Any, size: Any = None) -> np.ndarray:
        """As ``Generator.uniform``, with bounds for each number or for all."""
        count = size[0] if size is not None else len(low)
        return low + (high - low) * self.random(count)

    def shuffle(self, cards: np.ndarray) -> None:
        """Order cards, number i of suit i % 4, so that from the last one on they have the suits of the twin."""
        seed = (self.random(1) * 2.0**53).astype(np.int64)
        left = [list(cards[cards % 4 == suit]) for suit in range(4)]
        for dealt in range(total := len(cards)):
            share = random_shares(random_words(seed, np.array([dealt])))[0]
            place = int(share * (total - dealt))
            suit = int((place >= np.cumsum([len(each) for each in left])[:3]).sum())
            cards[total - 1 - dealt] = left[suit].pop()


class Seeded(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that draws from a ``Stream``, whatever seeds it is given."""

    def __init__(self, env: gymnasium.Env[Any, Any], seed: int) -> None:
        super().__init__(env)
        self.stream = Stream(seed)

    def reset(self, **_: Any) -> Any:
        """Begin the next episode of the stream."""
        self.env.unwrapped._np_random = self.stream  # type: ignore[assignment]
        return self.env.reset()


def program(task: str, num_envs: int, seed: int, **options: Any) -> Any:
    """A memory task in numpy that draws as the tensor environments with the seeds from ``seed`` on."""
    name = f"rltransformers/{task}-v0"
    env: Any = gymnasium.make_vec(name, num_envs, autoreset_mode=AutoresetMode.SAME_STEP, **options)
    env._generators = [Stream(seed + row) for row in range(num_envs)]
    return env


def spy_episodes(env: TensorVecEnv) -> np.ndarray:
    """How many episodes each environment has begun."""
    return env._episodes.numpy()
