"""One thread unless the user says otherwise; the choice in words."""

import os
from collections.abc import Iterator

import pytest
import torch

from rltransformers.core.errors import ConfigError
from rltransformers.training.runs.threads import use_threads


@pytest.fixture(autouse=True)
def two_threads_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch as on a machine with two cores, and nothing set by the user."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_one_thread_when_nothing_is_set() -> None:
    assert use_threads(None) == "torch: 1 thread (2 cores; --threads N for more, OMP_NUM_THREADS is respected)"
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(("text", "count"), [("2", 2), (" 3 ", 3), ("2,1", 2)])
def test_the_environment_variable_is_respected(monkeypatch: pytest.MonkeyPatch, text: str, count: int) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    torch.set_num_threads(1)
    assert use_threads(None) == f"torch: {count} threads (2 cores; from OMP_NUM_THREADS)"
    assert torch.get_num_threads() == count


def test_an_empty_variable_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    assert use_threads(None).startswith("torch: 1 thread (2 cores; --threads N")


def test_the_option_wins_over_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert use_threads(2) == "torch: 2 threads (2 cores; as asked)"
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("count", [0, -3, 1025, 10**20])
def test_a_number_that_cannot_be_meant_is_refused_and_changes_nothing(count: int) -> None:
    with pytest.raises(ConfigError, match=rf"threads must be a whole number in \[1, 1024\], got {count}"):
        use_threads(count)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", ",", "9" * 30])
def test_a_variable_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    with pytest.raises(
        ConfigError, match=r"OMP_NUM_THREADS must be a whole number in \[1, 1024\], got .*; unset it or use --threads N"
    ):
        use_threads(None)
    assert torch.get_num_threads() == 2
