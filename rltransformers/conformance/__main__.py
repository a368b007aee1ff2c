"""``python -m rltransformers.conformance``: puts policies to the checks and prints what came out."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from rltransformers.conformance.adapters import EXTRA, OURS, SUBJECTS, Subject
from rltransformers.conformance.checks import check_policy
from rltransformers.conformance.report import Checked, as_markdown, as_text, in_page
from rltransformers.core.files import replacing


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
    subjects = [each for each in SUBJECTS if not chosen.library or each.library in chosen.library]
    if chosen.write is not None:
        check_page(arguments, chosen.write, subjects)
    torch.set_num_threads(1)  # the policies are tiny
    rows, failed = [], False
    for subject in subjects:
        if not subject.installed:
            print(f"{subject.library}: {subject.name}: not installed; pip install 'rltransformers[{EXTRA}]'\n")
            continue
        row = checked(subject)
        rows.append(row)
        failed |= subject.library == OURS and any(result.failed for result in row.results)
        print(as_text(row), end="\n\n", flush=True)
    if chosen.write is not None:
        page = in_page(chosen.write.read_text(encoding="utf-8"), as_markdown(rows))
        with replacing(chosen.write) as temporary:
            temporary.write_text(page, encoding="utf-8")
    return int(failed)


def check_page(arguments: argparse.ArgumentParser, page: Path, subjects: Sequence[Subject]) -> None:
    """End the command unless ``page`` has a place for the table, and the table would have the rows of all subjects."""
    if not page.is_file():
        arguments.error(f"argument --write: there is no page {page} to put the table into")
    try:
        in_page(page.read_text(encoding="utf-8"), "")
    except ValueError as error:
        arguments.error(f"argument --write: {page}: {error}")
    missing = sorted({subject.library for subject in subjects if not subject.installed})
    if missing:
        arguments.error(
            f"argument --write: the table would lack the rows of {', '.join(missing)}, not installed here; "
            f"pip install 'rltransformers[{EXTRA}]', or name those that are in --library"
        )


def checked(subject: Subject) -> Checked:
    """All checks of one policy, with the version of its library."""
    torch.manual_seed(0)
    return Checked(subject.name, f"{subject.library} {subject.version}", check_policy(subject.make()))


if __name__ == "__main__":
    sys.exit(main())
