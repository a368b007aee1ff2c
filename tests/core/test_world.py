"""A process that fails tells the others why, and nobody waits for it."""

import os
import socket
import subprocess
import sys

import pytest

PROGRAM = """
from rltransformers.core.world import join
with join() as sharing:
    sharing.any(False)
    if sharing.rank == {failing}:
        raise ValueError("the pole broke")
    sharing.any(False)
"""


@pytest.mark.slow  # two processes import torch
@pytest.mark.parametrize(("failing", "words"), [(1, "process 1 failed: ValueError: the pole broke"), (0, "")])
def test_the_others_are_told_which_process_failed_and_why(failing: int, words: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    command = [sys.executable, "-c", PROGRAM.format(failing=failing)]
    processes = [
        subprocess.Popen(
            command,
            env=os.environ | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=300)[1] for process in processes]
    assert "ValueError: the pole broke" in said[failing]
    # Process 0 holds the store here, which ends with it; under torchrun the store outlives every process.
    assert f"process {1 - failing} of 2 lost the others: {words}" in said[1 - failing]
