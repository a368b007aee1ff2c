"""Runs that are killed and resumed against runs that are left alone; what is compared can differ."""

import math

import pytest
import torch

from tests.kills import kill_runs


@pytest.mark.slow
def test_killed_runs_end_like_those_that_were_left_alone(capfd: pytest.CaptureFixture[str]) -> None:
    assert kill_runs.main(["--kills", "2", "--updates", "24"]) == 0
    rows = capfd.readouterr().out.splitlines()[1:]
    last = [row for row in rows if "too few kills" not in row]  # a run that ended too early is made again, longer
    assert len(last) == 4 and all(row.endswith("equal") for row in last)
    assert not any("differs" in row for row in rows)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": 2}),
        ({"a": 1, "b": 2}, {"a": 1}),
        ([1.0, math.nan], [1.0, 2.0]),
        ([1], [1, 2]),
        (torch.zeros(2), -torch.zeros(2)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2, 1), torch.zeros(1, 2)),
    ],
)
def test_a_difference_is_seen(one: object, other: object) -> None:
    assert kill_runs.equal(one, one) and kill_runs.equal(other, other)
    assert not kill_runs.equal(one, other)
