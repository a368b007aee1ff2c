"""``python -m rltransformers.conformance``: check the agents of this package, or a mechanism, and print the results."""

import argparse
import sys
from collections.abc import Sequence

import torch

from rltransformers.conformance.adapters import AGENTS
from rltransformers.conformance.checks import check_policy
from rltransformers.conformance.mechanisms import LAWS, check_mechanism
from rltransformers.core.errors import ConfigError
from rltransformers.core.modules import named_object


def parser() -> argparse.ArgumentParser:
    """The arguments of the command."""
    arguments = argparse.ArgumentParser(
        prog="python -m rltransformers.conformance",
        description="Check agents with memory, seconds each: does acting compute what learning computes? Or hold the "
        "laws of the library against a mechanism, which takes a minute.",
    )
    arguments.add_argument(
        "mechanism", nargs="?", metavar="MODULE:NAME", help="a Spec of a module, which is imported; default: the agents"
    )
    arguments.add_argument("--law", choices=LAWS, action="append", help="of a mechanism only this law; may be repeated")
    arguments.add_argument("--agent", choices=AGENTS, action="append", help="only this agent; may be repeated")
    return arguments


def main(words: Sequence[str] | None = None) -> int:
    """Print the results; return 1 if an agent failed a check, or a mechanism a law."""
    arguments = parser()
    parsed = arguments.parse_args(words)
    torch.set_num_threads(1)  # the networks are tiny
    if parsed.mechanism is not None:
        try:
            report = check_mechanism(named_object(parsed.mechanism, "mechanism"), only=parsed.law or list(LAWS))
        except ConfigError as error:
            arguments.error(str(error))
        print(report)
        return int(not report.held)
    chosen = parsed.agent or AGENTS
    failed = False
    for name in chosen:
        torch.manual_seed(0)
        results = check_policy(AGENTS[name]())
        failed |= any(result.failed for result in results)
        print(f"{name}\n  " + "\n  ".join(map(str, results)), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
