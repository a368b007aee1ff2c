"""The losses of Q-learning and V-MPO are those of rlax."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.third_party
def test_losses_and_gradients_are_those_of_rlax() -> None:
    """In a process of its own: one that has imported JAX must not fork, and other tests of this process do."""
    if importlib.util.find_spec("rlax") is None:
        pytest.skip("rlax is not installed: pip install 'rltransformers[rlax]'")
    twins = Path(__file__).with_name("rlax_twins.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(twins)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
