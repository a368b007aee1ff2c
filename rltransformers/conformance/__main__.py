"""``python -m rltransformers.conformance``: puts policies to the checks and prints what came out."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from rltransformers.conformance.adapters import EXTRA, OURS, SUBJECTS, Subject
from rltransformers.conformance.checks import check_policy
from rltransformers.conformance.report import Checked, as_markdown, as_text, in_page


def parser() -> argparse.ArgumentParser:
    """The arguments of the command."""
    libraries = sorted({subject.library for subject in SUBJECTS})
    arguments = argparse.ArgumentParser(
        prog="python -m rltransformers.conformance",
        description="Check policies with memory: does acting compute what learning computes? Seconds per policy.",
    )
    arguments.add_argument(
        "--library", choices=libraries, action="append", help="only policies of this library; may be repeated"
    )
    arguments.add_argument(
        "--write", type=Path, metavar="PAGE", help="put the table into this page too, between its marks"
    )
    return arguments


def main(words: Sequence[str] | None = None) -> int:
    """Print the results; 1 when a policy of this package failed a check."""
    arguments = parser()
    chosen = arguments.parse_args(words)
    if chosen.write is not None and not chosen.write.is_file():
        arguments.error(f"argument --write: there is no page {chosen.write} to put the table into")
    torch.set_num_threads(1)  # the policies are tiny
    rows, failed = [], False
    for subject in SUBJECTS:
        if chosen.library and subject.library not in chosen.library:
            continue
        if not subject.installed:
            print(f"{subject.library}: {subject.name}: not installed; pip install 'rltransformers[{EXTRA}]'\n")
            continue
        row = checked(subject)
        rows.append(row)
        failed |= subject.library == OURS and any(result.failed for result in row.results)
        print(as_text(row), end="\n\n", flush=True)
    if chosen.write is not None:
        chosen.write.write_text(in_page(chosen.write.read_text(), as_markdown(rows)))
    return int(failed)


def checked(subject: Subject) -> Checked:
    """All checks of one policy, with the version of its library."""
    torch.manual_seed(0)
    return Checked(subject.name, f"{subject.library} {subject.version}", check_policy(subject.make()))


if __name__ == "__main__":
    sys.exit(main())
