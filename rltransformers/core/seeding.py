"""One seed, separate random streams: drawing more from one part of a run never shifts another.

Every environment of a run and every episode of an evaluation has a branch of the seed's ``SeedSequence`` of its own.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from rltransformers.core.errors import ConfigError

BRANCHES = ("model", "environment", "data", "action", "evaluation")


def branch(seed: int | None, name: str, *numbers: int) -> np.random.SeedSequence:
    """The branch of a run's seed that is called ``name`` (one of ``BRANCHES``), or a numbered branch of that one.

    A seed of None is drawn from the system.
    """
    if seed is not None and seed < 0:
        raise ConfigError(f"seed must be 0 or larger, got {seed}; or None for a random one")
    return np.random.SeedSequence(seed, spawn_key=(BRANCHES.index(name), *numbers))


def numpy_stream(seed: int | None, name: str) -> np.random.Generator:
    """Random numbers of the branch ``name`` of a seed."""
    return np.random.default_rng(branch(seed, name))


def torch_stream(seed: int | None, name: str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator on ``device`` for the branch ``name`` of a seed; its numbers depend on the type of the device."""
    drawn = int(branch(seed, name).generate_state(1, np.uint64)[0])
    return torch.Generator(device).manual_seed(drawn % 2**63)


def branch_seeds(seed: int, name: str, count: int, first: int = 0) -> list[int]:
    """Independent seeds (below 2**31) of the environments or episodes ``first``, ``first`` + 1, ... of a run."""
    return [int(branch(seed, name, number).generate_state(1)[0] >> 1) for number in range(first, first + count)]


def seed_environments(env: VecEnv, seeds: Sequence[int]) -> None:
    """Let every environment begin its next reset with a seed of its own; ``VecEnv.seed(s)`` hands out s, s + 1, ...

    A ``VecEnv`` with a ``seed`` of its own gets the first one.
    """
    while isinstance(env, VecEnvWrapper) and type(env).seed is VecEnvWrapper.seed:
        env = env.venv
    if type(env).seed is VecEnv.seed:
        env._seeds = list(seeds)
    else:
        env.seed(seeds[0])


def vector_seed(env: VectorEnv[Any, Any, Any], seeds: Sequence[int | None]) -> Any:
    """``seeds``, one for each copy, as ``env.reset`` takes them.

    Gymnasium's base class promises to take one number: a program for all copies gets the first, unless it has the
    attribute ``takes_seeds``.
    """
    if all(seed is None for seed in seeds):
        return None
    program = env.unwrapped
    takes_list = isinstance(program, SyncVectorEnv | AsyncVectorEnv) or getattr(program, "takes_seeds", False)
    return list(seeds) if takes_list else seeds[0]


def step_seed(seed: int, step: int, purpose: str) -> int:
    """An independent seed for every step and purpose, so that nothing but the step count has to be saved to resume."""
    words = [seed, step, *purpose.encode()]
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> 1)


def episode_noise(seed: int) -> np.random.Generator:
    """Random numbers of the actions sampled in the episode that an evaluation starts from ``seed``.

    They depend on neither the number nor the order of environments, and are not those that the environment draws.
    """
    return np.random.default_rng(step_seed(seed, 0, "action"))
