"""Put our agents and policies of other libraries to the checks, for the table of ``docs/results/conformance.md``.

python -m tests.peers.conformance --library sb3-contrib
python -m tests.peers.conformance --sources ~/sources --write docs/results/conformance.md

Libraries that pip does not install are read from checkouts in the folder of --sources. Where one of them, or what it
needs, is missing, a line says how to get it.
"""

import argparse
import importlib
import importlib.util
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from rltransformers.conformance.adapters import AGENTS
from rltransformers.conformance.checks import check_policy
from rltransformers.conformance.protocol import PolicyWithMemory
from rltransformers.core.files import replacing
from tests.peers.sources import SOURCES, VARIABLE, Source
from tests.peers.table import Row, as_markdown, in_page, sections

OURS = "rltransformers"
PACKAGES = {"rsl-rl-lib": "rsl_rl"}  # distributions whose package has another name


@dataclass(frozen=True)
class Subject:
    """A policy to check.

    Attributes:
        name: its name in the table.
        library: distribution or repository that it comes from.
        make: makes it, small and with random weights.
        source: folder that the library is read from; None for one that pip installs.
    """

    name: str
    library: str
    make: Callable[[], PolicyWithMemory]
    source: Source | None = None

    @property
    def imports(self) -> str:
        """The package of the library."""
        return PACKAGES.get(self.library, self.library.replace("-", "_"))

    @property
    def installed(self) -> bool:
        if self.source is not None:
            return self.source.exists
        return importlib.util.find_spec(self.imports) is not None

    @property
    def version(self) -> str:
        return version(self.library) if self.source is None else self.source.version

    @property
    def missing(self) -> str:
        """What to do where it is not installed."""
        return "pip install -e '.[conformance]'" if self.source is None else self.source.how


def peer(name: str, library: str, module: str, kind: str, *arguments: Any) -> Subject:
    """A policy of another library; its adapter is imported when it is made."""

    def make() -> PolicyWithMemory:
        adapter: Any = importlib.import_module(f"tests.peers.adapters.{module}")
        policy: PolicyWithMemory = getattr(adapter, kind)(*arguments)
        return policy

    return Subject(name, library, make, SOURCES.get(library))


SUBJECTS = (
    *(Subject(name, OURS, make) for name, make in AGENTS.items()),
    peer("RecurrentPPO", "sb3-contrib", "recurrent_ppo", "RecurrentPPOPolicy"),
    peer("LSTMModule, GAE", "torchrl", "torchrl_modules", "TorchRLRecurrentPolicy"),
    peer("DTActor, 5 of 20 steps", "torchrl", "torchrl_modules", "TorchRLDecisionTransformer", 5),
    peer("DTActor, 20 of 20 steps", "torchrl", "torchrl_modules", "TorchRLDecisionTransformer", 20),
    peer("TransformerModule, GAE", "torchrl-nightly", "torchrl_transformer", "TorchRLTransformerPolicy", False),
    peer("TransformerModule, shifted GAE", "torchrl-nightly", "torchrl_transformer", "TorchRLTransformerPolicy", True),
    peer("DecisionTransformerModel", "transformers", "hugging_face", "HuggingFacePolicy"),
    peer("DecisionTransformer", "d3rlpy", "d3rlpy_transformers", "D3rlpyPolicy", False),
    peer("DiscreteDecisionTransformer", "d3rlpy", "d3rlpy_transformers", "D3rlpyPolicy", True),
    peer("cache, learned positions", "x-transformers", "x_transformers_cache", "XTransformersPolicy", False),
    peer("cache, rotary positions", "x-transformers", "x_transformers_cache", "XTransformersPolicy", True),
    peer("PPO_RNN", "skrl", "skrl_models", "SkrlPolicy"),
    peer("PPO, RNNModel", "rsl-rl-lib", "rsl_rl_models", "RslRlPolicy"),
    peer("ppo_trxl, memory of 8 steps", "cleanrl", "cleanrl_trxl", "CleanRLPolicy", 8),
    peer("ppo_trxl, memory of 40 steps", "cleanrl", "cleanrl_trxl", "CleanRLPolicy", 40),
    peer("memory of 8 steps", "episodic-transformer-memory-ppo", "marcometer_trxl", "MarcoMeterPolicy", 8),
    peer("memory of 40 steps", "episodic-transformer-memory-ppo", "marcometer_trxl", "MarcoMeterPolicy", 40),
    peer("LSTM", "recurrent-ppo-truncated-bptt", "marcometer_lstm", "MarcoMeterLstmPolicy"),
    peer("DecisionTransformer for Gym", "decision-transformer", "kzl_gym", "KzlPolicy"),
    peer("Recurrent, stacks of 4 steps", "tianshou", "tianshou_recurrent", "TianshouPolicy"),
    peer("TformerTrajEncoder", "amago", "amago_encoder", "AmagoPolicy"),
    peer("DtqnAgent", "DTQN", "dtqn_agent", "DtqnPolicy", None, 0),
    peer("DtqnAgent, mask of floats", "DTQN", "dtqn_agent", "DtqnPolicy", -5.0, 0),
    peer("DtqnAgent, mask of floats, actions", "DTQN", "dtqn_agent", "DtqnPolicy", -5.0, 4),
)


def parser() -> argparse.ArgumentParser:
    """The arguments of the command."""
    arguments = argparse.ArgumentParser(prog="python -m tests.peers.conformance", description=__doc__)
    libraries = sorted({subject.library for subject in SUBJECTS})
    arguments.add_argument("--library", choices=libraries, action="append", help="only policies of this library")
    arguments.add_argument("--sources", type=Path, metavar="FOLDER", help="folder of the libraries without a package")
    arguments.add_argument("--write", type=Path, metavar="PAGE", help="put the table into this page, between its marks")
    return arguments


def main(words: Sequence[str] | None = None) -> None:
    """Print the results and, with ``--write``, put them into a page; refuse before computing where that cannot be."""
    command = parser()
    chosen = command.parse_args(words)
    if chosen.sources is not None:
        os.environ[VARIABLE] = str(chosen.sources.resolve())
    subjects = [subject for subject in SUBJECTS if not chosen.library or subject.library in chosen.library]
    if chosen.write is not None:
        try:
            for name in ("conformance", "failures"):
                in_page(chosen.write.read_text(encoding="utf-8"), name, "")
        except (OSError, ValueError) as error:
            command.error(f"argument --write: {chosen.write}: {error}")
        missing = {subject.library: subject.missing for subject in subjects if not subject.installed}
        for library, how in missing.items():
            command.error(f"argument --write: the table would lack the rows of {library}; {how}")
    rows, lacking = [], []
    for subject in subjects:
        if not subject.installed:
            print(f"{subject.library}: {subject.name}: not run; {subject.missing}")
            continue
        try:
            rows.append(checked(subject) if subject.source is None else checked_apart(subject))
        except ModuleNotFoundError as error:  # of a package that it needs
            lacking.append(f"{subject.library}: {error}; {subject.missing}")
            print(f"{subject.library}: {subject.name}: not run; {error}; {subject.missing}", flush=True)
            continue
        print(f"{rows[-1].library}: {subject.name}\n  " + "\n  ".join(map(str, rows[-1].results)), flush=True)
    if chosen.write is not None and lacking:
        command.error(f"argument --write: the table would lack rows: {lacking[0]}")
    if chosen.write is not None:
        page = in_page(chosen.write.read_text(encoding="utf-8"), "conformance", as_markdown(rows))
        page = in_page(page, "failures", sections(rows))
        with replacing(chosen.write) as temporary:
            temporary.write_text(page, encoding="utf-8")


def checked(subject: Subject) -> Row:
    """All checks of one policy, with the version of its library."""
    torch.set_num_threads(1)  # the policies are tiny
    torch.manual_seed(0)
    return Row(subject.name, f"{subject.library} {subject.version}", check_policy(subject.make()))


def checked_apart(subject: Subject) -> Row:
    """The same in a process of its own: repositories call their modules ``model`` and ``utils``."""
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawned) as processes:
        return processes.submit(_checked_from_source, SUBJECTS.index(subject)).result()


def _checked_from_source(index: int) -> Row:
    subject = SUBJECTS[index]
    assert subject.source is not None
    subject.source.use()
    return checked(subject)


if __name__ == "__main__":
    main()
