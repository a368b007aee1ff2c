"""Put our agents and policies of other libraries to the checks, for the table of ``docs/results/conformance.md``.

python -m tests.peers.conformance --library sb3-contrib
python -m tests.peers.conformance --write docs/results/conformance.md
"""

import argparse
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from rltransformers.conformance.adapters import AGENTS
from rltransformers.conformance.checks import check_policy
from rltransformers.conformance.protocol import PolicyWithMemory
from rltransformers.core.files import replacing
from tests.peers.table import Row, as_markdown, in_page

OURS = "rltransformers"
MISSING = "not installed; pip install -e '.[conformance]'"


@dataclass(frozen=True)
class Subject:
    """A policy to check.

    Attributes:
        name: its name in the table.
        library: distribution that it comes from.
        make: makes it, small and with random weights.
    """

    name: str
    library: str
    make: Callable[[], PolicyWithMemory]

    @property
    def imports(self) -> str:
        """The package of the library."""
        return self.library.replace("-", "_")

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.imports) is not None

    @property
    def version(self) -> str:
        return version(self.library)


def peer(name: str, library: str, module: str, kind: str, *arguments: Any) -> Subject:
    """A policy of another library; its adapter is imported when it is made."""

    def make() -> PolicyWithMemory:
        adapter: Any = importlib.import_module(f"tests.peers.adapters.{module}")
        policy: PolicyWithMemory = getattr(adapter, kind)(*arguments)
        return policy

    return Subject(name, library, make)


SUBJECTS = (
    *(Subject(name, OURS, make) for name, make in AGENTS.items()),
    peer("RecurrentPPO", "sb3-contrib", "recurrent_ppo", "RecurrentPPOPolicy"),
    peer("LSTMModule, GAE", "torchrl", "torchrl_modules", "TorchRLRecurrentPolicy"),
    peer("DTActor, 5 of 20 steps", "torchrl", "torchrl_modules", "TorchRLDecisionTransformer", 5),
    peer("DTActor, 20 of 20 steps", "torchrl", "torchrl_modules", "TorchRLDecisionTransformer", 20),
    peer("DecisionTransformerModel", "transformers", "hugging_face", "HuggingFacePolicy"),
    peer("DecisionTransformer", "d3rlpy", "d3rlpy_transformers", "D3rlpyPolicy", False),
    peer("DiscreteDecisionTransformer", "d3rlpy", "d3rlpy_transformers", "D3rlpyPolicy", True),
    peer("cache, learned positions", "x-transformers", "x_transformers_cache", "XTransformersPolicy", False),
    peer("cache, rotary positions", "x-transformers", "x_transformers_cache", "XTransformersPolicy", True),
)


def parser() -> argparse.ArgumentParser:
    """The arguments of the command."""
    arguments = argparse.ArgumentParser(prog="python -m tests.peers.conformance", description=__doc__)
    libraries = sorted({subject.library for subject in SUBJECTS})
    arguments.add_argument("--library", choices=libraries, action="append", help="only policies of this library")
    arguments.add_argument("--write", type=Path, metavar="PAGE", help="put the table into this page, between its marks")
    return arguments


def main(words: Sequence[str] | None = None) -> None:
    """Print the results and, with ``--write``, put them into a page; refuse before computing where that cannot be."""
    command = parser()
    chosen = command.parse_args(words)
    subjects = [subject for subject in SUBJECTS if not chosen.library or subject.library in chosen.library]
    if chosen.write is not None:
        try:
            in_page(chosen.write.read_text(encoding="utf-8"), "")
        except (OSError, ValueError) as error:
            command.error(f"argument --write: {chosen.write}: {error}")
        if missing := sorted({subject.library for subject in subjects if not subject.installed}):
            command.error(f"argument --write: the table would lack the rows of {', '.join(missing)}, {MISSING}")
    torch.set_num_threads(1)  # the policies are tiny
    rows = []
    for subject in subjects:
        if not subject.installed:
            print(f"{subject.library}: {subject.name}: {MISSING}")
            continue
        rows.append(checked(subject))
        print(f"{rows[-1].library}: {subject.name}\n  " + "\n  ".join(map(str, rows[-1].results)), flush=True)
    if chosen.write is not None:
        page = in_page(chosen.write.read_text(encoding="utf-8"), as_markdown(rows))
        with replacing(chosen.write) as temporary:
            temporary.write_text(page, encoding="utf-8")


def checked(subject: Subject) -> Row:
    """All checks of one policy, with the version of its library."""
    torch.manual_seed(0)
    return Row(subject.name, f"{subject.library} {subject.version}", check_policy(subject.make()))


if __name__ == "__main__":
    main()
