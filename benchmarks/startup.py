"""How long a user waits before anything happens: the import of the package and the first answer of the command line."""

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from benchmarks.harness import ROOT, Row, absolute

IMPORT = (sys.executable, "-c", "import rltransformers")
HELP = (sys.executable, "-c", "from rltransformers.cli.main import main; main()", "--help")
LIST = (sys.executable, "-c", "from rltransformers.cli.main import main; main()", "list")


def startup(*, repetitions: int = 5) -> Iterator[Row]:
    """Processes from start to end, files in the cache of the system, the bare interpreter included."""
    bare = statistics.median(seconds((sys.executable, "-c", "pass"), repetitions))
    note = f"a bare interpreter takes {bare:.3f} s of it"
    yield absolute("import rltransformers", "a new process", "s", seconds(IMPORT, repetitions), "<= 0.15", note=note)
    yield absolute("rltransformers --help", "a new process", "s", seconds(HELP, repetitions), "<= 0.4", note=note)
    yield absolute("rltransformers list", "a new process", "s", seconds(LIST, repetitions), note=note)


def seconds(command: Sequence[str], repetitions: int) -> list[float]:
    """Of every run after a first one that fills the caches."""
    found = []
    for _ in range(1 + repetitions):
        began = time.perf_counter()
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        found.append(time.perf_counter() - began)
    return found[1:]
