"""Two halves of every batch teach a Decision Transformer what the whole of it does."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.training.distributed_jobs import offline, played
from tests.worlds import Pool, pool

pytestmark = pytest.mark.xdist_group("two processes")


@pytest.fixture(scope="module")
def two() -> Iterator[Pool]:
    with pool(2) as found:
        yield found


CASES: dict[str, dict[str, Any]] = {
    "returns": {},
    "behavior cloning, a batch that is odd": {"mode": "bc", "batch_size": 7},
    "predicted returns, a critic that aligns": {
        "return_head": "expectile", "critic": "qcs", "critic_kwargs": {"width": 16, "alignment": 0.5, "weight": 2.0}
    },
    "advantages": {"mode": "advantage", "advantage_kwargs": {"updates": 2}},
    "auxiliary losses": {"losses": {"al_rfou": 1.0, "pattern": 1.0, "disagreement": 1.0}, "batch_size": 7},
    "entropy of a Box": {"action_head": "gaussian", "critic": "qt", "critic_kwargs": {"width": 16}},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_two_half_batches_are_one_whole(two: Pool, case: dict[str, Any]) -> None:
    one = offline(updates=6, **case)
    found = two.run(offline, updates=6, **case)
    assert np.abs(one["weights"] - one["start"]).max() > 1e-2
    for each in found:
        for name, value in one.items():
            np.testing.assert_allclose(each[name], value, rtol=0, atol=1e-6, err_msg=name)
    for name, value in found[0].items():  # the processes themselves do not drift apart at all
        np.testing.assert_array_equal(found[1][name], value, err_msg=name)


def test_all_processes_end_when_the_callback_of_one_ends_training(two: Pool) -> None:
    for each in two.run(offline, updates=12, ends_in=1):
        assert len(each["losses"]) == 9


def test_all_processes_learn_from_the_episodes_of_the_first(two: Pool) -> None:
    one, (first, second) = played(updates=2), two.run(played, updates=2)
    np.testing.assert_array_equal(first["rewards"], one["rewards"])  # no update has happened before
    assert first["steps"] == one["steps"] > 2
    for name, value in first.items():
        np.testing.assert_array_equal(second[name], value, err_msg=name)
