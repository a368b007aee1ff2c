"""Print the oldest versions that pyproject.toml allows of what users install, as constraints of pip.

    make test-oldest    # runs all tests with them

Tools of those who develop are not among them: the newest ones are installed.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
# What the tests use; the other extras bring tools and packages of others that are compared with.
EXTRAS = ("mujoco", "export", "knn", "csv", "parquet", "tune")


def oldest() -> Iterator[tuple[str, str]]:
    """Name and oldest version of every package that the library and ``EXTRAS`` need."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    extras = project["optional-dependencies"]
    for requirement in (*project["dependencies"], *(line for extra in EXTRAS for line in extras[extra])):
        match = re.fullmatch(r"([\w-]+)(?:\[[\w-]+\])?>=([\d.]+)", requirement)
        if match is None:
            raise SystemExit(f"{requirement!r} in {PROJECT.name} has no oldest version; write it as name>=version")
        yield match[1], match[2]


if __name__ == "__main__":
    for name, version in sorted(set(oldest())):
        print(f"{name}=={version}")
