"""Episodes that limits cut, and a record of who collected them, so that bootstraps can be computed again.

Axes: E environments, T steps of all rollouts together.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from torch import Tensor

from rltransformers.conformance.protocol import Bootstrap

LIMITS = (11, 40, 17)
"""Steps of the episodes of the environments: limits in the middle of rollouts, and one that spans a whole one."""
ROLLOUT = 24
DISCOUNT = 0.9
OBSERVATION, ACTIONS = 3, 3  # numbers of an observation, and actions to choose from


class Limited(gym.Env[np.ndarray, np.int64]):
    """Observes normal noise from the seed; a limit cuts episodes after ``length`` steps. Rewards are the actions."""

    def __init__(self, length: int) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (OBSERVATION,), np.float32)
        self.action_space = spaces.Discrete(ACTIONS)
        self.length, self.t = length, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self._observe(), float(action), False, self.t == self.length, {}

    def _observe(self) -> np.ndarray:
        return self.np_random.normal(size=OBSERVATION).astype(np.float32)


def limited() -> VecEnv:
    """An environment per length of ``LIMITS``."""
    return DummyVecEnv([partial(Limited, length) for length in LIMITS])


class Recorder(BaseCallback):
    """Keeps what every step of the environments gave."""

    def __init__(self) -> None:
        super().__init__()
        self.observations: list[np.ndarray] = []
        self.actions: list[np.ndarray] = []
        self.rewards: list[np.ndarray] = []
        self.dones: list[np.ndarray] = []
        self.last: dict[tuple[int, int], np.ndarray] = {}
        """True last observations of episodes that a limit cut, by environment and step."""

    def _on_rollout_start(self) -> None:
        self.observations = self.observations or [np.array(self.model._last_obs)]

    def _on_step(self) -> bool:
        local = self.locals
        actions = local["actions"]
        self.actions.append(np.asarray(actions[""] if isinstance(actions, dict) else actions).reshape(-1).copy())
        self.rewards.append(np.array(local["rewards"]))
        self.dones.append(np.array(local["dones"]))
        for row, info in enumerate(local["infos"]):
            if info.get("TimeLimit.truncated", False):
                self.last[row, len(self.dones) - 1] = np.array(info["terminal_observation"])
        self.observations.append(np.array(local["new_obs"]))
        return True

    def beginning(self, row: int, step: int) -> int:
        """The step at which the episode of an environment began that runs at ``step``."""
        return next((t + 1 for t in range(step - 1, -1, -1) if self.dones[t][row]), 0)

    def inputs(self, row: int, step: int, last: np.ndarray | None = None) -> Tensor:
        """[T, 5] of the episode that runs at ``step``, up to what came of it: observation, previous action and reward.

        ``last`` is the observation after ``step``; None for the one that the next step saw.
        """
        begin = self.beginning(row, step)
        seen = [self.observations[t][row] for t in range(begin, step + 1)]
        seen.append(self.observations[step + 1][row] if last is None else last)
        actions = [0.0, *(code(self.actions[t][row]) for t in range(begin, step + 1))]
        rewards = [0.0, *(self.rewards[t][row] for t in range(begin, step + 1))]
        return torch.tensor(np.column_stack([np.stack(seen), actions, rewards]), dtype=torch.float32)


def code(action: float) -> float:
    """A number for an action of the environment, which ``decoded`` turns back."""
    return float(action) - 0.5


def decoded(numbers: Tensor) -> Tensor:
    """Actions 0, 1 and 2 of numbers below 0, up to 1 and above."""
    return (numbers > 0).long() + (numbers > 1).long()


def collected(model: Any, rollouts: int) -> Recorder:
    """Collect so many rollouts without an update in between."""
    recorder = Recorder()
    _, callback = model._setup_learn(10**6, recorder)
    for _ in range(rollouts):
        model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
    return recorder


def bootstraps(
    recorder: Recorder, values: np.ndarray, fitting: Callable[[Tensor], Tensor] = lambda inputs: inputs
) -> list[Bootstrap]:
    """Every cut of the newest rollout; ``values`` [E, T] were used after its steps, ``fitting`` makes inputs [T, D]."""
    found, steps = [], values.shape[1]
    offset = len(recorder.dones) - steps
    for row in range(values.shape[0]):
        for t in range(steps):
            step = offset + t
            limit, end = recorder.last.get((row, step)), t == steps - 1
            if limit is not None or (end and not recorder.dones[step][row]):
                where = f"environment {row}, {'time limit' if limit is not None else 'end of the rollout'} at step {t}"
                found.append(Bootstrap(fitting(recorder.inputs(row, step, limit)), float(values[row, t]), where))
    return found


def next_values(advantages: np.ndarray, values: np.ndarray, rewards: np.ndarray) -> np.ndarray:
    """The value behind a cut, read off the advantage there: A = r + g V' - V, whatever the trace."""
    return (advantages + values - rewards) / DISCOUNT


@torch.no_grad()
def shaken(weights: Any) -> None:
    """Add noise to all weights: what begins at zero, or nearly constant, has to show."""
    generator = torch.Generator().manual_seed(0)
    for weight in weights:
        if weight.is_floating_point():
            weight.add_(0.15 * torch.randn(weight.shape, generator=generator).to(weight))
