"""Replays in files: every process of a run takes the rows of its own environments."""

import numpy as np
import torch
from gymnasium import spaces

from rltransformers.core.world import Sharing
from rltransformers.data.replay import SegmentReplay
from rltransformers.training.online.replay_data import restore_replay, rows_of_replay

SPACES = {"": spaces.Box(-np.inf, np.inf, (1,))}
ACTIONS = spaces.Discrete(2)


def replay(n_envs: int) -> SegmentReplay:
    return SegmentReplay(40 * n_envs, n_envs, 4, 4, 1, SPACES, ACTIONS)


def test_environments_that_a_limit_cut_at_other_times_have_other_numbers_of_rows() -> None:
    whole = replay(4)
    for step in range(20):
        number = np.full((4, 1), step, np.float32)
        starts, ends, kept = np.full(4, step == 0), np.zeros(4, bool), np.ones(4, bool)
        whole.add({"": number}, {"": torch.zeros(4, dtype=torch.int64)}, number[:, 0], starts, ends, kept)
    whole.add_last([1], {"": np.full((1, 1), 20, np.float32)})
    state = rows_of_replay(whole, Sharing())
    for rank in (0, 1):
        part = replay(2)
        restore_replay(part, state, Sharing(rank, 2))
        assert part.written.tolist() == whole.written[2 * rank : 2 * rank + 2].tolist()
        assert torch.equal(part.rewards, whole.rewards[2 * rank : 2 * rank + 2])
