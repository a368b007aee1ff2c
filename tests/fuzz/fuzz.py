"""Hostile inputs by the thousand: configs, keywords, data, files, environments, spaces, arrays and command lines.

`python tests/fuzz/fuzz.py` prints how many were accepted, refused with a reason, or met a fault.

A fault is a traceback nobody can read, a hang, or an input that was accepted and is not what it says. Every input has a
number; `--only AREA --seed S --number N` tries one again and shows the whole traceback.
"""

import argparse
import os
import random
import resource
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # so that the modules next to this file are found

import torch  # noqa: E402

from tests.fuzz import (  # noqa: E402
    checkpoints,
    commands,
    configs,
    data,
    environments,
    files,
    keywords,
    moved,
    spaces_and_arrays,
)
from tests.fuzz.probe import Area, Judgment, Probe, judge, shown  # noqa: E402

AREAS: Mapping[str, Area] = {
    "configs": configs.draw,
    "keywords": keywords.draw,
    "data": data.draw,
    "checkpoints": checkpoints.draw,
    "environments": environments.draw,
    "commands": commands.draw,
    "files": files.draw,
    "moved": moved.draw,
    "spaces": spaces_and_arrays.draw,
}
SHARES = {
    "configs": 6, "keywords": 6, "data": 5, "checkpoints": 3, "environments": 2, "commands": 3,
    "files": 3, "moved": 3, "spaces": 4,
}  # fmt: skip
GIGABYTES = 8
"""Address space of a run: what asks for more is a size that should have been refused."""


def main(words: Sequence[str] | None = None) -> int:
    """Exit status: 0 no fault, 1 faults."""
    arguments = parser().parse_args(words)
    limit = GIGABYTES * 2**30
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    areas = arguments.only or list(AREAS)
    faults = 0
    print(f"{'area':<14}{'inputs':>8}{'accepted':>10}{'refused':>9}{'unclear':>9}{'hangs':>7}{'wrong':>7}")
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        os.chdir(folder)
        for area in areas:
            numbers = (
                [arguments.number] if arguments.number is not None else range(count(area, areas, arguments.inputs))
            )
            faults += run(area, arguments.seed, numbers, arguments.number is not None)
        os.chdir(ROOT)
    print(f"{faults} faults")
    return 1 if faults else 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--inputs", type=int, default=2_500, metavar="N", help="inputs over all areas (default: 2500)")
    made.add_argument("--seed", type=int, default=0, metavar="S", help="another seed, other inputs (default: 0)")
    made.add_argument("--only", nargs="+", choices=list(AREAS), metavar="AREA", help=f"of {', '.join(AREAS)}")
    made.add_argument("--number", type=int, metavar="N", help="this input alone, with its traceback")
    return made


def count(area: str, areas: Sequence[str], inputs: int) -> int:
    """The share of an area in ``inputs``, at least 1."""
    return max(1, round(inputs * SHARES[area] / sum(SHARES[each] for each in areas)))


def run(area: str, seed: int, numbers: Sequence[int] | range, traced: bool) -> int:
    """Try the inputs of one area, print its row and its faults; returns the number of faults."""
    outcomes: Counter[str] = Counter()
    faults: list[tuple[int, Probe, Judgment]] = []
    for number in numbers:
        probe = AREAS[area](random.Random(f"{area}/{seed}/{number}"))
        if traced:
            print(probe.text)
            probe.act()
        judgment = judge(probe)
        outcomes[judgment.outcome] += 1
        if judgment.fault:
            faults.append((number, probe, judgment))
    row = [outcomes[name] for name in ("accepted", "refused", "unclear", "hang", "wrong")]
    print(f"{area:<14}{len(numbers):>8}{row[0]:>10}{row[1]:>9}{row[2]:>9}{row[3]:>7}{row[4]:>7}", flush=True)
    for number, probe, judgment in faults:
        print(f"  {number:>5} {judgment.outcome}: {shown(probe.text, 300)}\n        {judgment.detail}", flush=True)
    return len(faults)


if __name__ == "__main__":
    sys.exit(main())
