"""Processes that are copies of this one: they have everything imported, which takes those of users three seconds."""

import importlib
import os
import sys
import traceback
import warnings
from typing import NoReturn

from rltransformers.cli.engines import Engine, Job, Order


class CopyJob(Job):
    """A process that runs the ``main`` of the module that an order names."""

    def __init__(self, order: Order) -> None:
        for folder in (order.log.parent, order.folder):
            folder.mkdir(parents=True, exist_ok=True)
        reader, self.writer = os.pipe()
        os.write(self.writer, order.text.encode())
        self.status: int | None = None
        with warnings.catch_warnings(action="ignore"):  # Python 3.12 and newer: that there may be other threads
            self.process = os.fork()
        if not self.process:
            os.close(self.writer)
            work(order, reader)
        os.close(reader)

    def poll(self) -> int | None:
        return self.ended(os.WNOHANG)

    def wait(self) -> int:
        status = self.ended(0)
        assert status is not None
        return status

    def ended(self, options: int) -> int | None:
        """The exit status, None as long as it runs."""
        if self.status is None:
            process, status = os.waitpid(self.process, options)
            if process:
                self.status = os.waitstatus_to_exitcode(status)
                os.close(self.writer)
        return self.status

    def stop(self) -> None:
        raise NotImplementedError("tests that stop processes start real ones")


def work(order: Order, reader: int) -> NoReturn:
    """Do what is ordered and end the process."""
    status = 1
    try:
        os.setsid()
        log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for source, number in ((reader, 0), (log, 1), (log, 2)):
            os.dup2(source, number)
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
        warnings.resetwarnings()
        os.environ.update(order.environment)
        os.chdir(order.folder)
        flag, module = order.words
        assert flag == "-m", order.words
        status = int(importlib.import_module(module).main() or 0)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


class Copies(Engine):
    """To stand in for ``engines.LocalEngine``, where a test does not ask how processes are started."""

    slots = 2

    def start(self, order: Order) -> CopyJob:
        return CopyJob(order)

    def close(self) -> None:
        pass
