"""What EnvPool does, in Python: seeds fixed when a pool is made, resets in the step behind an end, resets by number.

Its environments are those of Gymnasium, so that their rows can be compared; real ones are written in C++.
"""

from typing import Any

import gymnasium
import numpy as np

NAMES = ["CartPole-v1", "FrozenLake-v1"]


def list_all_envs() -> list[str]:
    return NAMES


class Pool:
    """Copies of an environment; copy i has ``seed + i``."""

    def __init__(self, task_id: str, num_envs: int, seed: int, max_episode_steps: int) -> None:
        self.envs = [gymnasium.make(task_id, max_episode_steps=max_episode_steps).unwrapped for _ in range(num_envs)]
        self.observation_space, self.action_space = self.envs[0].observation_space, self.envs[0].action_space
        self.limit, self.seeds = max_episode_steps, [seed + i for i in range(num_envs)]
        self.elapsed, self.done = np.zeros(num_envs, np.int32), np.ones(num_envs, bool)
        self.begun = [False] * num_envs
        self.closed = False

    def reset(self, env_id: np.ndarray | None = None) -> tuple[Any, dict[str, Any]]:
        """Rows of these copies alone."""
        copies = np.arange(len(self.envs), dtype=np.int32) if env_id is None else env_id
        observations = [self._begin(i) for i in copies.tolist()]
        return np.array(observations), self._info(copies)

    def step(self, actions: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """A copy that ended begins an episode, ignores its action and returns no reward."""
        copies = np.arange(len(self.envs), dtype=np.int32)
        terminated, truncated = np.zeros(len(copies), bool), np.zeros(len(copies), bool)
        observations, rewards = [], np.zeros(len(copies), np.float32)
        for i in copies.tolist():
            if self.done[i]:
                observations.append(self._begin(i))
                continue
            observation, rewards[i], ended, _, _ = self.envs[i].step(int(actions[i]))
            self.elapsed[i] += 1
            truncated[i] = self.elapsed[i] >= self.limit and not ended
            terminated[i], self.done[i] = ended, ended or truncated[i]
            observations.append(observation)
        return np.array(observations), rewards, terminated, truncated, self._info(copies)

    def close(self) -> None:
        """End the threads."""
        self.closed = True

    def _begin(self, i: int) -> Any:
        seed = None if self.begun[i] else self.seeds[i]
        self.begun[i], self.done[i], self.elapsed[i] = True, False, 0
        return self.envs[i].reset(seed=seed)[0]

    def _info(self, copies: np.ndarray) -> dict[str, Any]:
        return {"env_id": copies, "players": {"env_id": copies}, "elapsed_step": self.elapsed[copies]}


def make(task_id: str, env_type: str, num_envs: int, seed: int = 42, max_episode_steps: int = 500) -> Pool:
    assert env_type == "gymnasium"
    return Pool(task_id, num_envs, seed, max_episode_steps)
