"""Environments with time limits that begin anew by themselves and record, for libraries without those of SB3."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rltransformers.conformance.adapters.rollouts import LIMITS, OBSERVATION, Limited, Recorder, bootstraps
from rltransformers.conformance.protocol import Bootstrap


class RecordedEnvs:
    """An environment ``Limited`` per length, stepped together; every end of an episode is a time limit."""

    def __init__(self, lengths: tuple[int, ...] = LIMITS) -> None:
        self.envs, self.recorder = [Limited(length) for length in lengths], Recorder()
        self.newest = np.stack([env.reset(seed=row)[0] for row, env in enumerate(self.envs)])
        self.recorder.observations.append(self.newest)

    @property
    def observations(self) -> Tensor:
        """[E, 3], of now."""
        return torch.as_tensor(self.newest)

    def step(self) -> tuple[Tensor, Tensor, Tensor]:
        """Observations [E, 3] after a step, rewards [E], and which episodes a limit cut [E]; actions have no effect."""
        recorder, step = self.recorder, len(self.recorder.dones)
        rewards = np.array([0.1 * row + 0.2 for row in range(len(self.envs))], np.float32)
        taken = [env.step(np.int64(0)) for env in self.envs]
        cut = np.array([each[3] for each in taken])
        for row in np.flatnonzero(cut):
            recorder.last[int(row), step] = taken[row][0]
        self.newest = np.stack([env.reset()[0] if end else each[0]
                                for env, each, end in zip(self.envs, taken, cut, strict=True)])  # fmt: skip
        recorder.rewards.append(rewards)
        recorder.dones.append(cut)
        recorder.actions.append(np.zeros(len(self.envs)))
        recorder.observations.append(self.newest)
        return self.observations, torch.as_tensor(rewards), torch.as_tensor(cut)

    def bootstraps(self, values: np.ndarray) -> Sequence[Bootstrap]:
        """Of the newest rollout, after whose steps a learner used ``values`` [E, T]."""
        return bootstraps(self.recorder, values, lambda inputs: inputs[:, :OBSERVATION])
