"""Segments of whole environments: what is stored, how episode ends enter the advantages, how batches are cut."""

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rltransformers.data.rollout import (
    RolloutBuffer,
    Segment,
    action_layout,
    generalized_advantage,
    observation_layout,
)

ENVS, STEPS = 3, 5


@dataclass(frozen=True)
class Rows:
    """A memory of one number per environment."""

    values: Tensor

    def __getitem__(self, rows: Tensor) -> "Rows":
        return Rows(self.values[rows])

    def clone(self) -> "Rows":
        return Rows(self.values.clone())


def filled(
    rewards: Tensor | None = None,
    values: Tensor | None = None,
    ends: tuple[tuple[int, int], ...] = (),
    truncated: dict[tuple[int, int], float] | None = None,
    ignored: tuple[tuple[int, int], ...] = (),
    bootstrap: Tensor | None = None,
    discount: float = 0.9,
    trace: float = 0.8,
) -> Segment:
    buffer = RolloutBuffer(ENVS, STEPS, {"": spaces.Box(-1, 1, (2,))}, spaces.Discrete(3))
    buffer.reset(Rows(torch.arange(ENVS)))
    rewards = torch.randn(ENVS, STEPS) if rewards is None else rewards
    values = torch.randn(ENVS, STEPS) if values is None else values
    for t in range(STEPS):
        column = torch.full((ENVS,), t)
        end, count = np.zeros(ENVS, bool), np.ones(ENVS, bool)
        for env, at in ends:
            end[env] |= at == t
        for env, at in ignored:
            count[env] &= at != t
        observation = {"": torch.stack([torch.arange(ENVS), column], 1).float()}
        buffer.add(
            observation, {"": column % 3}, rewards[:, t].numpy(), end, end, values[:, t], values[:, t] / 2, count
        )
        for (env, at), value in (truncated or {}).items():
            if at == t:
                buffer.truncate(torch.tensor([env]), torch.tensor([value]))
    return buffer.finish(torch.randn(ENVS) if bootstrap is None else bootstrap, discount, trace)


def by_hand(
    rewards: list[float], values: list[float], next_values: list[float], ends: list[bool], gamma: float, lam: float
) -> list[float]:
    """The sum of eq. 16 of arXiv 1506.02438, written out for every step."""
    errors = [r + gamma * n - v for r, v, n in zip(rewards, values, next_values, strict=True)]
    advantages = []
    for t in range(len(errors)):
        total, weight = 0.0, 1.0
        for u in range(t, len(errors)):
            total += weight * errors[u]
            if ends[u]:
                break
            weight *= gamma * lam
        advantages.append(total)
    return advantages


def test_advantages_equal_the_sum_written_out() -> None:
    rewards, values, next_values = (torch.randn(2, 7, dtype=torch.float64) for _ in range(3))
    ends = torch.rand(2, 7) < 0.3
    advantages = generalized_advantage(rewards, values, next_values, ends, 0.9, 0.7)
    for row in range(2):
        r, v, following, over = (x[row].tolist() for x in (rewards, values, next_values, ends))
        expected = by_hand(r, v, following, over, 0.9, 0.7)
        # float64 sums of seven terms
        torch.testing.assert_close(advantages[row], torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0)


def test_termination_ends_the_value_and_truncation_takes_the_given_one() -> None:
    rewards, values = torch.zeros(ENVS, STEPS), torch.zeros(ENVS, STEPS)
    values[:, 3] = 100.0  # what follows in the next episode must not leak back
    segment = filled(rewards, values, ends=((0, 2), (1, 2)), truncated={(1, 2): 10.0}, bootstrap=torch.zeros(ENVS))
    assert float(segment.advantages[0, 2]) == 0.0
    assert float(segment.advantages[1, 2]) == pytest.approx(0.9 * 10.0)
    assert float(segment.advantages[2, 2]) != 0.0


def test_the_last_step_takes_the_value_after_the_rollout() -> None:
    zeros = torch.zeros(ENVS, STEPS)
    segment = filled(zeros, zeros, ends=((0, STEPS - 1),), bootstrap=torch.full((ENVS,), 2.0))
    assert segment.advantages[:, -1].tolist() == pytest.approx([0.0, 1.8, 1.8])


def test_nothing_flows_back_over_a_row_that_does_not_count() -> None:
    rewards = torch.zeros(ENVS, STEPS)
    rewards[:, 4] = 1.0
    zeros = torch.zeros(ENVS, STEPS)
    segment = filled(rewards, zeros, ends=((0, 2),), ignored=((0, 3),), bootstrap=torch.zeros(ENVS))
    assert segment.advantages[0, :4].tolist() == [0.0] * 4
    assert segment.counts[0].tolist() == [True, True, True, False, True]


def test_minibatches_hold_every_environment_once_with_its_memory() -> None:
    segment = filled()
    order = torch.randperm(len(segment), generator=torch.Generator().manual_seed(0))
    batches = [segment.rows(rows) for rows in order.split(2)]
    assert [len(batch) for batch in batches] == [2, 1]
    seen = []
    for batch in batches:
        environments = batch.observations[""][:, 0, 0].long()
        assert torch.equal(batch.memory.values, environments)
        assert torch.equal(batch.returns, segment.returns[environments])
        seen += environments.tolist()
    assert sorted(seen) == [0, 1, 2]


def test_a_finished_segment_survives_the_next_rollout() -> None:
    buffer = RolloutBuffer(1, 1, {"": spaces.Box(-1, 1, (1,))}, spaces.Discrete(2))
    one, no, ones = torch.ones(1), np.zeros(1, bool), np.ones(1, np.float32)
    buffer.add({"": torch.ones(1, 1)}, {"": torch.ones(1).long()}, ones, no, no, one, one, ~no)
    first = buffer.finish(one, 1.0, 1.0)
    buffer.reset()
    buffer.add({"": torch.zeros(1, 1)}, {"": torch.zeros(1).long()}, 0 * ones, no, no, one, one, ~no)
    assert float(first.observations[""].sum()) == 1.0
    assert float(first.rewards.sum()) == 1.0


@pytest.mark.parametrize(
    ("space", "dtype"),
    [
        (spaces.Box(0, 255, (4, 4), np.uint8), torch.uint8),
        (spaces.Box(-1, 1, (2,), np.float64), torch.float32),
        (spaces.Box(0, 9, (2,), np.int32), torch.int32),
        (spaces.Box(0, 60_000, (2,), np.uint16), torch.uint16),
        (spaces.Discrete(300), torch.int64),
        (spaces.MultiDiscrete([300, 2]), torch.int64),
        (spaces.MultiBinary(3), torch.int8),
    ],
)
def test_observations_keep_room_for_their_values(space: gym.Space[Any], dtype: torch.dtype) -> None:
    assert observation_layout({"": space}) == {"": (space.shape, dtype)}


def test_indices_above_255_fit_into_stored_actions() -> None:  # T22: actions kept as bytes
    space = spaces.Dict({"a": spaces.Discrete(1000), "b": spaces.Box(-1, 1, (2, 3)), "c": spaces.MultiBinary([4, 5])})
    wanted = {"a": ((), torch.int64), "b": ((2, 3), torch.float32), "c": ((4, 5), torch.int8)}
    assert action_layout(space) == wanted
    assert action_layout(spaces.Box(0, 9, (2,), np.int32)) == {"": ((2,), torch.float32)}  # as sampled, not as taken
