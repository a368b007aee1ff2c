"""How many threads torch computes with: one, unless the user says otherwise."""

import os

import torch

from rltransformers.core.described import count
from rltransformers.core.device import cores
from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import Threads, check, describe, fits

VARIABLE = "OMP_NUM_THREADS"


def use_threads(threads: int | None) -> str:
    """Give torch ``threads`` threads in this process, or ``OMP_NUM_THREADS``, or 1; returns the choice in words.

    Only the command line calls this. Agents leave torch as they find it: its threads belong to the whole program.
    """
    variable = os.environ.get(VARIABLE, "").strip()
    if threads is not None:
        threads = check(threads, Threads, "threads")
        reason = "as asked"
    elif variable:
        first = variable.split(",")[0].strip()  # the later ones of a list such as 4,2 are for threads inside threads
        if not (first.isascii() and first.isdigit() and fits(int(first), Threads)):
            raise ConfigError(f"{VARIABLE} must be {describe(Threads)}, got {variable!r}; unset it or use --threads N")
        threads = int(first)
        reason = f"from {VARIABLE}"
    else:
        threads = 1
        reason = f"--threads N for more, {VARIABLE} is respected"
    torch.set_num_threads(threads)
    return f"torch: {count(threads, 'thread')} ({count(cores(), 'core')}; {reason})"
