"""The laws before the clock: a variant is timed only while every law of the contract suite holds for it."""

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.harness import ROOT

SUITE = Path("tests", "attention", "test_contract.py")
FINISHED = (0, 1, 5)  # pytest: all passed, some failed, no test selected


def require_green(names: Iterable[str], suite: Path = SUITE) -> set[str]:
    """The names whose laws in ``suite`` all hold: catalogue entries ("mixer:linear"), presets ("preset:gtrxl"), rows.

    One pytest call for all of them. A red name is printed with the laws that it breaks, so that a benchmark can leave
    it out.

    Raises:
        SystemExit: no name is green, a name has no laws, or pytest is missing.
    """
    wanted = sorted(set(names))
    results = outcomes(wanted, suite)
    unknown = [name for name in wanted if not results[name]]
    if unknown:
        raise SystemExit(
            f"no law in {suite} speaks of {', '.join(unknown)}; "
            "benchmark names are those of the contract suite, e.g. mixer:linear or preset:gtrxl"
        )
    red = {name: [law for law, held in results[name].items() if not held] for name in wanted}
    for name, broken in red.items():
        if broken:
            print(f"refused: {name} is not timed, it breaks {', '.join(broken)}; run pytest {suite} -k '{name}'")
    green = {name for name, broken in red.items() if not broken}
    if wanted and not green:
        raise SystemExit(f"nothing to time: the laws are red for {', '.join(wanted)}")
    return green


def outcomes(names: list[str], suite: Path = SUITE) -> dict[str, dict[str, bool]]:
    """Whether each law holds, by name and test."""
    missing = [module for module in ("pytest", "xdist") if importlib.util.find_spec(module) is None]
    if missing:
        raise SystemExit(f'laws are checked before timing and need {", ".join(missing)}: pip install -e ".[dev]"')
    found: dict[str, dict[str, bool]] = {name: {} for name in names}
    if not names:
        return found
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "laws.xml")
        command = [sys.executable, "-m", "pytest", str(suite), "-q", "-n", "2", "-p", "no:cacheprovider"]
        run = subprocess.run(
            [*command, f"--junitxml={results}", "-k", " or ".join(names)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode not in FINISHED or not results.exists():
            raise SystemExit(f"the laws could not be checked: {(run.stdout + run.stderr).strip()[-2000:]}")
        for case in ElementTree.parse(results).iter("testcase"):
            law, _, rest = case.get("name", "").partition("[")
            held = case.find("failure") is None and case.find("error") is None
            for name in rest.rstrip("]").partition("-")[0].split("="):  # all that the case speaks of
                if name in found:
                    found[name][law] = found[name].get(law, True) and held
    return found
