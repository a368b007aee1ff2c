"""The fuzz suite itself: its judgment, and a sample of its inputs against the library."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rltransformers.core.errors import ConfigError
from tests.fuzz.fuzz import AREAS, SHARES, count
from tests.fuzz.probe import Probe, WrongError, judge

ROOT = Path(__file__).resolve().parents[2]


def refuse(message: str) -> None:
    raise ConfigError(message)


def accept() -> None:
    pass


def fail() -> None:
    raise TypeError("can only concatenate str")


def lie() -> None:
    raise WrongError("the weights differ")


@pytest.mark.parametrize(
    ("probe", "outcome"),
    [
        (Probe("x", accept), "accepted"),
        (Probe("x", accept, refused=False), "accepted"),
        (Probe("x", accept, refused=True), "wrong"),
        (Probe("x", lambda: refuse("gamma must lie in [0, 1]"), refused=True, names=("gamma",)), "refused"),
        (Probe("x", lambda: refuse("gamma must lie in [0, 1]"), refused=False), "wrong"),
        (Probe("x", lambda: refuse("it must lie in [0, 1]"), names=("gamma",)), "unclear"),
        (Probe("x", lambda: refuse("two\nlines")), "unclear"),
        (Probe("x", lambda: refuse("")), "unclear"),
        (Probe("x", fail), "unclear"),
        (Probe("x", fail, refused=True), "unclear"),
        (Probe("x", lie), "wrong"),
    ],
)
def test_a_probe_is_judged_by_what_has_to_come_of_it(probe: Probe, outcome: str) -> None:
    judgment = judge(probe)
    assert judgment.outcome == outcome
    assert judgment.fault == (outcome not in ("accepted", "refused"))


def test_a_probe_that_does_not_end_is_a_hang() -> None:
    def wait() -> None:
        while True:
            try:
                time.sleep(0.01)
            except Exception:
                continue

    assert judge(Probe("x", wait), seconds=0.1).outcome == "hang"


def test_the_same_number_is_the_same_input_and_areas_share_the_inputs() -> None:
    for name, draw in AREAS.items():
        if name in ("checkpoints", "commands", "files"):  # drawing these trains an agent
            continue
        texts = [draw(random.Random(f"{name}/0/{number}")).text for number in (*range(12), *range(12))]
        assert texts[:12] == texts[12:]
        assert len(set(texts)) > 6
    assert abs(sum(count(name, list(AREAS), 2_500) for name in AREAS) - 2_500) <= len(AREAS)
    assert set(SHARES) == set(AREAS)


@pytest.mark.slow
def test_a_sample_of_hostile_inputs_meets_no_fault() -> None:
    """Other inputs than the default seed's; a fault prints the command that shows it."""
    command = [sys.executable, "tests/fuzz/fuzz.py", "--inputs", "60", "--seed", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
