"""Choose the tests that a change needs, and print the arguments of pytest, one run per line.

python tests/_tools/chosen_tests.py            # what differs from the last commit
python tests/_tools/chosen_tests.py main       # what differs from where this branch left main

A mechanism needs its own laws; any other file of the network needs the laws of all mechanisms, since the tests of its
own folder see less than half of the mistakes that the laws see. Other files need the tests of their folder.
"""

import argparse
import importlib
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from rltransformers.backbone import AXES  # noqa: E402
from rltransformers.core.spec import Spec  # noqa: E402

NETWORK = {"attention", "backbone", "blocks", "functional", "laws", "memory", "mixers", "positions", "stacks"}
LAWS = ("tests/attention", "tests/backbone")
ALWAYS = (*sorted(f"tests/{path.name}" for path in ROOT.glob("tests/test_*.py")), "tests/docs/test_update_docs.py")
"""Tests of the whole package: a removed name, for example, is in a list that none of its folder's tests reads."""
EVERYTHING = {"pyproject.toml", "constraints.txt", "Makefile", "tests/conftest.py"}
BESIDE = {
    "agents": ("tests/agents", "tests/peers", "tests/export"),
    "algorithms": ("tests/algorithms", "tests/agents"),
    "policies": ("tests/policies", "tests/agents", "tests/export"),
    "training": ("tests/training", "tests/agents"),
    "configs": ("tests/cli", "tests/zoo"),
    "scripts": ("tests/benchmarks", "tests/zoo", "tests/cli/test_runs.py"),
}
"""Folders of tests for a folder of the package where they are not only the one of the same name."""


def changed_files(reference: str | None) -> list[str]:
    """Paths, relative to the root, that differ from the last commit or from where the branch left ``reference``."""
    base = "HEAD" if reference is None else _git("merge-base", reference, "HEAD")[0]
    return sorted({*_git("diff", "--name-only", base), *_git("ls-files", "--others", "--exclude-standard")})


def _git(*words: str) -> list[str]:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


def chosen(files: Iterable[str]) -> list[list[str]]:
    """Arguments of pytest for each run that the changed files need."""
    folders, mechanisms, all_laws = set(ALWAYS), set(), False
    for file in files:
        parts = Path(file).parts
        if file in EVERYTHING:
            return [["tests"]]
        folder = parts[1] if parts[0] == "rltransformers" and len(parts) > 2 else parts[0]
        if folder == "tests":
            folders.add(file if parts[-1].startswith("test_") else "/".join(parts[:2]))
        elif folder in NETWORK and file.endswith(".py"):
            own = entries(file)
            mechanisms |= own
            all_laws |= not own
            folders.add(f"tests/{folder}/test_{parts[-2]}.py")
        if folder != "tests":
            folders |= {each for each in BESIDE.get(folder, (f"tests/{folder}",)) if (ROOT / each).exists()}
    runs = [sorted(folder for folder in folders - {*LAWS} if (ROOT / folder).exists())]
    if all_laws:
        runs.append([*LAWS])
    elif mechanisms:
        runs.append([*LAWS, "-k", " or ".join(sorted(mechanisms))])
    else:
        runs[0] += sorted(folders & {*LAWS})
    return runs


def entries(file: str) -> set[str]:
    """The mechanisms that a file defines, as "axis:name"; none if it is gone or holds what others stand on."""
    if not (ROOT / file).exists():
        return set()
    module = importlib.import_module(".".join(Path(file).with_suffix("").parts))
    specs = [value for value in vars(module).values() if isinstance(value, Spec)]
    text = (ROOT / file).read_text()
    own = [(axis, spec.name) for axis in AXES.values() for spec in specs if axis.table.get(spec.name) is spec]
    own = [(axis, name) for axis, name in own if f'"{name}"' in text]  # not what is only imported
    return set() if any(axis.neutral == name for axis, name in own) else {f"{axis.name}:{name}" for axis, name in own}


def main() -> None:
    """Print the runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference", nargs="?", help="a commit or a branch; the last commit by default")
    for run in chosen(changed_files(parser.parse_args().reference)):
        print("\t".join(run))


if __name__ == "__main__":
    main()
