"""``python -m rltransformers.conformance``: check the agents of this package and print the results."""

import argparse
import sys
from collections.abc import Sequence

import torch

from rltransformers.conformance.adapters import AGENTS
from rltransformers.conformance.checks import check_policy


def parser() -> argparse.ArgumentParser:
    """The arguments of the command."""
    arguments = argparse.ArgumentParser(
        prog="python -m rltransformers.conformance",
        description="Check agents with memory: does acting compute what learning computes? Seconds per agent.",
    )
    arguments.add_argument("--agent", choices=AGENTS, action="append", help="only this agent; may be repeated")
    return arguments


def main(words: Sequence[str] | None = None) -> int:
    """Print the results; return 1 if an agent failed a check."""
    chosen = parser().parse_args(words).agent or AGENTS
    torch.set_num_threads(1)  # the policies are tiny
    failed = False
    for name in chosen:
        torch.manual_seed(0)
        results = check_policy(AGENTS[name]())
        failed |= any(result.failed for result in results)
        print(f"{name}\n  " + "\n  ".join(map(str, results)), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
