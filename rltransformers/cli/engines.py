"""Where the processes of many runs live, on this machine or on those of a Ray cluster, and how all of them are run.

``train --seeds``, ``tune`` and ``suite`` start their processes here.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import chdir
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from rltransformers.core.device import cores
from rltransformers.core.errors import ConfigError, one_line, require
from rltransformers.core.files import replacing
from rltransformers.core.signals import Stopped, signals_to

RETRIES = 3  # how often Ray starts a process again whose machine or worker is lost
POLL_SECONDS = 0.1  # time between two looks at the processes that run
STOP_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
"""Signals that ask a command to stop; schedulers of jobs send it to each of its processes."""
Key = TypeVar("Key")


@dataclass(frozen=True)
class Order:
    """A process of Python. Missing folders are made."""

    words: tuple[str, ...]  # arguments of the interpreter
    text: str  # its standard input, which stays open: when it ends, whoever ordered is gone
    log: Path  # receives what it prints
    results: tuple[Path, ...] = ()  # files that it leaves and that whoever ordered reads
    environment: Mapping[str, str] = field(default_factory=dict)  # variables besides those of this process
    folder: Path = field(default_factory=Path.cwd)  # that it runs in


class Job(Protocol):
    """A process that was ordered. ``poll`` gives its exit status, None as long as it runs; ``stop`` does not wait."""

    def poll(self) -> int | None: ...

    def stop(self) -> None: ...

    def wait(self) -> int: ...


class Engine(Protocol):
    """Starts what is ordered, at once or as soon as one of its ``slots`` is free: as many as there are cores."""

    @property
    def slots(self) -> int: ...

    def start(self, order: Order) -> Job: ...

    def close(self) -> None: ...


class LocalJob(Job):
    """A child of this process, in a session of its own.

    The terminal would send it a second Ctrl-C, which ends a run without a checkpoint.
    """

    def __init__(self, order: Order) -> None:
        for folder in (order.log.parent, order.folder):
            folder.mkdir(parents=True, exist_ok=True)
        with order.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", *order.words],  # -P: what lies in the current folder is no module
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | dict(order.environment),
                cwd=order.folder,
                text=True,
                start_new_session=True,
            )
        assert self.process.stdin is not None  # it was asked for
        self.process.stdin.write(order.text)
        self.process.stdin.flush()

    def poll(self) -> int | None:
        return None if self.process.poll() is None else self.wait()

    def wait(self) -> int:
        status = self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        return status

    def stop(self) -> None:
        self.process.terminate()


class LocalEngine(Engine):
    """The cores of this machine that this process may use."""

    @property
    def slots(self) -> int:
        return cores()

    def start(self, order: Order) -> LocalJob:
        return LocalJob(order)

    def close(self) -> None:
        pass


class RayJob(Job):
    """A task of Ray that runs the process as its child."""

    def __init__(self, ray: Any, reference: Any, order: Order) -> None:
        self.ray, self.reference, self.order = ray, reference, order

    def poll(self) -> int | None:
        ready, _ = self.ray.wait([self.reference], timeout=0)
        return self.wait() if ready else None

    def wait(self) -> int:
        """The exit status, once the files that the process left are here; that of SIGTERM after ``stop``."""
        try:
            status, files = self.ray.get(self.reference)
        except self.ray.exceptions.TaskCancelledError:
            return 128 + signal.SIGTERM
        except self.ray.exceptions.RayError as error:
            self.order.log.parent.mkdir(parents=True, exist_ok=True)
            with self.order.log.open("a", encoding="utf-8") as log:
                log.write(f"Ray lost the process: {one_line(error)}\n")
            return 1
        for path, content in files.items():
            if not path.is_file() or path.read_bytes() != content:  # no file system in common with that machine
                path.parent.mkdir(parents=True, exist_ok=True)
                with replacing(path) as temporary:
                    temporary.write_bytes(content)
        return int(status)

    def stop(self) -> None:
        """The worker is killed; the process notices that its input ends."""
        self.ray.cancel(self.reference, force=True)


class RayEngine(Engine):
    """The cores of a Ray cluster, whose machines have this Python environment and project at the same paths.

    Each process is a task of one core. One whose worker dies, or whose machine is lost, is started again up to
    ``RETRIES`` times with the same order: runs of ``suite`` go on from their last checkpoint where the
    file system is shared, all others begin anew.

    ``address`` is that of a running cluster ("auto" for the one this machine belongs to); None starts Ray on this
    machine alone, and ends it with the engine. Raises MissingExtraError without Ray. The first look at ``slots`` or the
    first process connects to it; ConfigError where nothing answers.
    """

    def __init__(self, address: str | None = None) -> None:
        require("ray", "ray")
        self.address = address

    @cached_property
    def ray(self) -> Any:
        """Ray, connected to the cluster."""
        address, ray = self.address, require("ray", "ray")
        try:
            if address is not None and address != "auto":
                knock(address)
            dashboard = None if address else False
            with chdir(sys.prefix):  # Ray puts the current folder onto the path of its workers
                ray.init(
                    address=address or "local",
                    include_dashboard=dashboard,
                    log_to_driver=False,
                    logging_level=logging.ERROR,  # it would announce itself among the lines of the runs
                )
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"no Ray cluster answers at {address!r} ({one_line(error)}); start one with `ray start --head`, or "
                "leave out --address to use this machine alone"
            ) from error
        return ray

    @property
    def slots(self) -> int:
        return int(self.ray.cluster_resources().get("CPU", 1))

    def start(self, order: Order) -> RayJob:
        task = self.ray.remote(num_cpus=1, max_retries=RETRIES)(run)
        return RayJob(self.ray, task.remote(order), order)

    def close(self) -> None:
        if "ray" in vars(self):
            self.ray.shutdown()


def engine_of(name: str, address: str | None) -> Engine:
    """The engine "local" or "ray"; raises ConfigError for an address without Ray."""
    if name == "ray":
        return RayEngine(address)
    if address is not None:
        raise ConfigError(f"--address {address} is that of a Ray cluster; add --engine ray, or leave it out")
    return LocalEngine()


def carry_out(
    engine: Engine,
    orders: Iterable[tuple[Key, Order]],
    jobs: int | None,
    ended: Callable[[Key, int], None],
    watch: Callable[[Key, Job], None] = lambda key, job: None,
) -> None:
    """Run what is ordered, ``jobs`` at a time, and call ``ended`` with the exit status of each.

    ``jobs`` None is the number of slots. An order is taken from ``orders``, each with its name, when there is room for
    it, so ``ended`` can change what comes next. ``watch`` is called again and again for every process that runs, and
    once more behind its end. An exception of one of the three stops all processes at once and waits for them.

    Raises:
        Stopped: for SIGINT, SIGTERM or SIGHUP, when all processes have ended; each is asked to as often as a signal
            comes, and none begins behind it. Also when a process got the signal a moment before this one did.
    """
    slots = engine.slots  # an engine that does not answer says so before anything is ordered
    jobs, waiting = jobs or slots, iter(orders)
    running: dict[Key, Job] = {}
    signals: list[int] = []

    def stop(signum: int) -> None:
        signals.append(signum)
        for job in list(running.values()):
            job.stop()

    with signals_to(stop):
        try:
            more = True
            while running or (more and not signals):
                while more and not signals and len(running) < jobs:
                    following = next(waiting, None)
                    more = following is not None
                    if following is not None:
                        running[following[0]] = job = engine.start(following[1])
                        if signals:  # it came while the process began
                            job.stop()
                for key, job in list(running.items()):
                    status = job.poll()
                    watch(key, job)
                    if status is not None:
                        if signal_name(status) in STOP_SIGNALS:  # whoever sent it may be about to send it to us, too
                            time.sleep(POLL_SECONDS)
                        del running[key]
                        if not signals:
                            ended(key, status)
                if running:
                    time.sleep(POLL_SECONDS)
            if signals:
                raise Stopped(signals[0])
        finally:
            for job in running.values():
                job.stop()
            for job in running.values():
                job.wait()


def signal_name(status: int) -> str | None:
    """The signal that a process with this exit status ended for; None where it was none."""
    try:
        return signal.Signals(-status if status < 0 else status - 128).name
    except ValueError:
        return None


class Lines:
    """The lines that a file gets from now on; it may come to be later."""

    def __init__(self, path: Path) -> None:
        self.path, self._read = path, path.stat().st_size if path.is_file() else 0

    def new(self) -> list[str]:
        """Return the complete lines added since the last call."""
        if not self.path.is_file():
            return []
        with self.path.open("rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole + newline)
        return whole.decode(errors="replace").split("\n") if newline else []


def knock(address: str) -> None:
    """Open a connection to "host:port" or "ray://host:port" and close it; Ray itself would try for minutes."""
    parts = urlsplit(address if "://" in address else f"ray://{address}")
    if parts.hostname is None or parts.port is None:
        raise ValueError('an address is "auto", "host:port" or "ray://host:port"')
    socket.create_connection((parts.hostname, parts.port), timeout=10).close()


def run(order: Order) -> tuple[int, dict[Path, bytes]]:
    """Exit status of a process, and the files that it left, its log among them."""
    job = LocalJob(order)
    try:
        status = job.wait()
    finally:
        if job.process.poll() is None:
            job.stop()
            job.wait()
    return status, {path: path.read_bytes() for path in (*order.results, order.log) if path.is_file()}
