"""How long an episode may last before playing it to its end is an error; whether one succeeded."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec

from rltransformers.core.errors import DataError
from rltransformers.core.members import numbers
from rltransformers.core.ranges import Count, check, shown

LONGEST_EPISODE = 200_000
"""Steps, where neither the caller nor the environment's spec says more.

Above the longest episodes of common suites: Atari games end after 108,000 frames.
"""


def longest_allowed(longest_episode: int | None, spec: EnvSpec | None) -> int:
    """The number given; without one ``LONGEST_EPISODE``, or the step limit in the spec where that is larger.

    Raises:
        ConfigError: for what is no whole number of at least 1.
    """
    longest_episode = check(longest_episode, Count | None, "longest_episode")
    if longest_episode is None:
        limit = None if spec is None else spec.max_episode_steps
        return max(LONGEST_EPISODE, limit or 0)
    return int(longest_episode)


def endless_episode(name: str | None, index: int, steps: int) -> DataError:
    """The error to raise for an episode of sub-environment ``index`` that is not over after ``steps``."""
    return DataError(
        f"an episode of environment {index}{f' of {name}' if name else ''} has not ended after {steps:,} steps; if the "
        "task has no end of its own, let the environment cut its episodes (its keyword max_episode_steps), else raise "
        "longest_episode"
    )


def episode_record(info: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a ``Monitor`` wrote into the last info of an episode; None for none, and for an environment's own "episode".

    A record has the return "r" and the length "l".
    """
    record = info.get("episode")
    if not isinstance(record, Mapping):
        return None
    values = [np.asarray(record.get(key)) for key in ("r", "l")]
    return record if all(value.size == 1 and value.dtype.kind in "biuf" for value in values) else None


def success_of(info: Mapping[str, Any], environment: int) -> bool | None:
    """Whether the episode that ended with ``info`` succeeded: ``is_success``, else ``success``; None without either.

    Some environments call other things "success": what is no number there is left alone.

    Raises:
        DataError: for an ``is_success`` that is no number; names the environment.
    """
    name = "success" if info.get("is_success") is None else "is_success"
    if info.get(name) is None:
        return None
    try:
        if np.isnan(value := numbers(np.reshape(info[name], ()))):
            raise ValueError("NaN is neither")
        return bool(value)
    except (DataError, ValueError) as error:
        if name == "success":
            return None
        raise DataError(
            f"info['is_success'] of environment {environment} is {shown(info[name])} where an episode ended; make it "
            "True where the episode succeeded, else False, or leave it out"
        ) from error
