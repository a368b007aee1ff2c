"""Failures of other libraries, each in a short program of ``failures`` that uses neither this package nor an adapter.

The docstring of a program is its section on ``docs/results/conformance.md``: a title, and below it the explanation. The
last number that it prints is how far two sides are apart. Programs of a library without a package run in the folder of
sources:

    python tests/peers/failures/skrl_states.py
    cd ~/sources && python .../tests/peers/failures/cleanrl_bootstrap.py
"""

import ast
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rltransformers.zoo.report import opening
from tests.peers.sources import SOURCES, VARIABLE

FOLDER = Path(__file__).parent / "failures"
FIRST_STEP = ("step = segment", "no look-ahead", "positions are contiguous", "first ratio is 1")


@dataclass(frozen=True)
class Failure:
    """A program that shows why checks fail.

    Attributes:
        name: of the file.
        library: as in the table.
        imports: module that has to be installed for the program on the page to run in the tests of the documents.
        checks: that fail for this reason.
        policies: of the library whose checks do; none for all.
    """

    name: str
    library: str
    imports: str
    checks: tuple[str, ...]
    policies: tuple[str, ...] = ()

    def explains(self, library: str, policy: str, check: str) -> bool:
        """Whether a check of a policy fails for this reason."""
        return library == self.library and check in self.checks and policy in (self.policies or (policy,))

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.py"

    @cached_property
    def _parts(self) -> tuple[str, str, str]:
        text = self.path.read_text(encoding="utf-8")
        title, _, about = (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")
        return title, about, text.split('"""\n', 2)[-1].strip("\n")

    @property
    def title(self) -> str:
        """The heading of its section."""
        return self._parts[0]

    @property
    def anchor(self) -> str:
        """What the site calls the heading in addresses."""
        return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", self.title).strip().lower())

    def run(self) -> str:
        """What the program prints."""
        with tempfile.TemporaryDirectory() as empty:
            folder = os.environ[VARIABLE] if self.library in SOURCES else empty
            command = [sys.executable, "-W", "ignore", str(self.path)]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode:
            raise RuntimeError(f"{self.path.name} failed: {done.stderr[-2000:]}")
        return done.stdout

    def section(self, version: str) -> str:
        """Its section of the page: explanation, program and output."""
        title, about, program = self._parts
        test = f"<!-- test: where {self.imports} is installed -->"
        printed = f"With {self.library} {version} it prints:"
        shown = [test, "```python", program, "```", "", printed, "", f"```text\n{self.run()}```"]
        return "\n".join([f"### {title}\n\n{about}\n", *opening("Program and output", shown)])


FAILURES = (
    Failure("recurrent_ppo_stopped", "sb3-contrib", "sb3_contrib", ("stopped run keeps memory",)),
    Failure("torchrl_dt_actor", "torchrl", "torchrl", ("step = segment", "positions are contiguous")),
    Failure("torchrl_gae", "torchrl-nightly", "torchrl_nightly", ("bootstraps from the right memory",)),
    Failure("d3rlpy_positions", "d3rlpy", "d3rlpy", ("positions are contiguous",)),
    Failure("d3rlpy_discrete", "d3rlpy", "d3rlpy", ("step = segment",)),
    Failure("x_transformers_positions", "x-transformers", "x_transformers", ("positions are contiguous",)),
    Failure("skrl_states", "skrl", "skrl", ("first ratio is 1",)),
    Failure("skrl_limits", "skrl", "skrl", ("bootstraps from the right memory",)),
    Failure("rsl_rl_limits", "rsl-rl-lib", "rsl_rl", ("bootstraps from the right memory",)),
    Failure("cleanrl_first_step", "cleanrl", "ppo_trxl", FIRST_STEP),
    Failure("cleanrl_bootstrap", "cleanrl", "ppo_trxl", ("bootstraps from the right memory",)),
    Failure("marcometer_first_step", "episodic-transformer-memory-ppo", "trainer", FIRST_STEP),
    Failure(
        "marcometer_bootstrap", "episodic-transformer-memory-ppo", "trainer", ("bootstraps from the right memory",)
    ),
    Failure("tianshou_stack", "tianshou", "tianshou", ("step = segment",)),
    Failure("amago_window", "amago", "amago", ("positions are contiguous",)),
    Failure("amago_weights", "amago", "amago", ("changed weights take effect",)),
    Failure("dtqn_observations", "DTQN", "dtqn", ("step = segment", "positions are contiguous"), ("DtqnAgent",)),
    Failure("dtqn_actions", "DTQN", "dtqn", ("step = segment", "reset leaks nothing", "positions are contiguous")),
)
