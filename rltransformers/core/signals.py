"""Signals that end a command: what they call, and what a run raises when one ends it."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Stopped(KeyboardInterrupt):
    """A signal ended the run."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


@contextmanager
def signals_to(stop: Callable[[int], None]) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP call ``stop`` with their number, unless they are ignored as under ``nohup``."""
    if threading.current_thread() is not threading.main_thread():  # only there Python lets handlers be set
        yield
        return
    before: dict[int, Any] = {}
    terminals = [stream.fileno() for stream in (sys.__stdout__, sys.__stderr__) if stream and stream.isatty()]

    def handle(signum: int, frame: object) -> None:
        if signum == getattr(signal, "SIGHUP", None):
            for descriptor in terminals:  # the terminal is gone; writing to it would end the run in an error
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        stop(signum)

    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signum = getattr(signal, name, None)
        if signum is not None and signal.getsignal(signum) is not signal.SIG_IGN:
            before[signum] = signal.signal(signum, handle)
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
