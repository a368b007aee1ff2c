"""The code of an earlier commit as a peer: worker processes, one per version, take their steps in turn.

Run as a program (``past.py ACTING``) this file is such a worker: it times twenty steps for every line that it reads.
"""

import inspect
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STEPS_PER_LINE = 20


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """A folder with the code of a commit of this repository."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as file:
            file.extractall(folder, filter="data")
        yield Path(folder)


class Worker:
    """A process that takes steps with the code in a folder."""

    def __init__(self, folder: Path, *arguments: str, program: Path = Path(__file__)) -> None:
        environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(program), *arguments]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=folder, env=environment, stdin=pipe, stdout=pipe, text=True)
        self.read()

    def read(self) -> str:
        """The next line of the worker."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the worker ended; its error stands above")
        return line

    def ask(self) -> str:
        """Answer of the worker to the next line."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.read()

    def seconds(self) -> float:
        """Of one step, the mean over twenty."""
        return float(self.ask())

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


def main(acting: str) -> None:
    """Be a worker: a policy with a full memory, sixteen environments, four actions."""
    import gymnasium as gym
    import numpy as np
    import torch

    from rltransformers.policies.actor_critic import GTrXLPolicy

    torch.set_num_threads(1)
    backbone = {"width": 64, "layers": 2, "heads": 4, "memory": 64, "ff_width": 64}
    observations = gym.spaces.Box(-1.0, 1.0, (8,), np.float32)
    policy: Any = GTrXLPolicy(observations, gym.spaces.Discrete(4), lambda _: 3e-4, backbone=backbone)
    policy.set_training_mode(False)
    if acting == "compiled":
        from rltransformers.policies.steps import ActorCriticMachine

        policy.machine_code = ActorCriticMachine(policy)
    leaves, state = {path: torch.randn(16, 8) for path in policy.leaf_types}, policy.initial_state(16)
    first, rewards, generator = torch.zeros(16, dtype=torch.bool), torch.zeros(16), torch.Generator()
    draws = "noise" in inspect.signature(policy.step).parameters

    def step(state: Any) -> Any:
        if draws:
            noise = policy.action_head.draw(16, generator)
            *_, state = policy.step(leaves, state, first, noise, overwrites=True)
        else:
            *_, state = policy.step(leaves, state, first, generator=generator)
        return replace(state, previous_reward=rewards)

    for _ in range(150):
        state = step(state)
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        for _ in range(STEPS_PER_LINE):
            state = step(state)
        print((time.perf_counter() - began) / STEPS_PER_LINE, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
