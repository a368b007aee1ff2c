"""How long an episode may last before playing it to its end is an error."""

from gymnasium.envs.registration import EnvSpec

from rltransformers.core.errors import DataError
from rltransformers.core.ranges import Count, check

LONGEST_EPISODE = 200_000
"""Steps, where neither the caller nor the environment's spec says more.

Above the longest episodes of common suites: Atari games end after 108,000 frames.
"""


def longest_allowed(longest_episode: int | None, spec: EnvSpec | None) -> int:
    """The number given; without one ``LONGEST_EPISODE``, or the step limit in the spec where that is larger."""
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
