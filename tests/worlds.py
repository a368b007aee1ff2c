"""Processes that wait for jobs and do them together, as the ranks of one training."""

import os
import socket
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from typing import Any, cast

import torch
import torch.multiprocessing as mp

from tests.kills.kill_runs import PRELOAD

Job = Callable[..., Any]


class Pool:
    """``size`` processes that train together.

    Those of the method "forkserver" are copies of a process that has imported what they need, "spawn" starts new ones.
    """

    def __init__(self, size: int, method: str) -> None:
        context: Any = mp.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload([*PRELOAD, "tests.training.distributed_jobs"])
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        self.pipes: list[Any] = []
        self.threads: list[int] = []
        self.processes: list[Any] = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
            address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            variables = {name: str(value) for name, value in (place | address).items()}
            process = context.Process(target=serve, args=(variables, theirs), daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, job: Job, **options: Any) -> list[Any]:
        """What ``job(**options)`` returns in every process.

        Raises:
            RuntimeError: with the traceback of the first process in which it failed.
        """
        for pipe in self.pipes:
            pipe.send((job, options))
        answers: dict[int, Any] = {}
        while len(answers) < len(self.pipes):
            for pipe in cast(list[Any], wait([pipe for rank, pipe in enumerate(self.pipes) if rank not in answers])):
                done, answer = pipe.recv()
                if not done:
                    self.kill()  # the others wait for this one
                    raise RuntimeError(answer)
                answers[self.pipes.index(pipe)] = answer
        return [answers[rank] for rank in range(len(self.pipes))]

    def kill(self) -> None:
        for process in self.processes:
            process.kill()

    def close(self) -> None:
        """End the processes; ``threads``: how many more each has than before it joined the others."""
        for pipe in self.pipes:
            with suppress(OSError, EOFError):
                pipe.send(None)
                self.threads.append(pipe.recv())
        for process in self.processes:
            process.join(30)
        self.kill()


@contextmanager
def pool(size: int, method: str = "forkserver") -> Iterator[Pool]:
    """A pool for the block."""
    found = Pool(size, method)
    try:
        yield found
    finally:
        found.close()


def serve(variables: Mapping[str, str], pipe: Any) -> None:
    """Do jobs until there are no more."""
    os.environ.update(variables)
    torch.set_num_threads(1)
    from rltransformers.core.world import join

    before = len(os.listdir("/proc/self/task"))
    with join():
        while (task := pipe.recv()) is not None:
            job, options = task
            try:
                pipe.send((True, job(**options)))
            except Exception:
                pipe.send((False, traceback.format_exc()))
    pipe.send(len(os.listdir("/proc/self/task")) - before)
