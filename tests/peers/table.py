"""Results of the conformance checks as Markdown for ``docs/results/conformance.md``."""

from collections.abc import Sequence
from dataclasses import dataclass

from rltransformers.conformance.checks import CHECKS, Result
from tests.peers.reproductions import FAILURES

MARKS = "<!-- {name}:start -->", "<!-- {name}:end -->"
"""Around what is generated: the table of ``conformance``, and the sections of ``failures``."""


@dataclass(frozen=True)
class Row:
    """The results of one policy, in the order of ``CHECKS``."""

    name: str
    library: str
    results: Sequence[Result]


def as_markdown(rows: Sequence[Row]) -> str:
    """A table of figures, what failed with its place, and why checks do not apply."""
    lines = [
        f"| policy | {' | '.join(CHECKS)} |",
        f"|---|{'---|' * len(CHECKS)}",
        *(f"| {row.library} `{row.name}` | {' | '.join(map(_cell, row.results))} |" for row in rows),
        "",
        "**Failed**",
        "",
        *_failed(rows),
        "",
        "**Passed with a refusal, or does not apply**",
        "",
        *(f"- {line}." for name in CHECKS for line in _reasons(name, rows)),
    ]
    return "\n".join(lines)


def _failed(rows: Sequence[Row]) -> list[str]:
    """A line for each reason, with the policies and the checks that fail for it, and one for each failure without."""
    failed = [(row, result) for row in rows for result in row.results if result.failed]
    lines = []
    for each in FAILURES:
        explained = [pair for pair in failed if each.explains(pair[0].library.split()[0], pair[0].name, pair[1].check)]
        names = dict.fromkeys(f"`{row.name}`" for row, _ in explained)
        checks = dict.fromkeys(f"*{result.check}*" for _, result in explained)
        if explained:
            lines.append(f"- [{each.title}](#{each.anchor}): {', '.join(checks)} ({', '.join(names)}).")
        failed = [pair for pair in failed if pair not in explained]
    return lines + [f"- {row.library} `{row.name}`, {result.check}: {result.note}." for row, result in failed]


def sections(rows: Sequence[Row]) -> str:
    """The sections of all failures, whose programs run for it."""
    versions = dict(row.library.split() for row in rows)
    return "\n\n".join(each.section(versions[each.library]) for each in FAILURES if each.library in versions)


def _cell(result: Result) -> str:
    if result.figure is None:
        return "–"
    return f"**{result.figure:.2g}**" if result.failed else f"{result.figure:.0e}" if result.figure else "0"


def _reasons(check: str, rows: Sequence[Row]) -> list[str]:
    """Notes on a check that did not fail, each with the policies that it is true of."""
    names: dict[str, list[str]] = {}
    for row in rows:
        for result in row.results:
            if result.check == check and result.note and not result.failed:
                names.setdefault(result.note, []).append(f"{row.library.split()[0]} `{row.name}`")
    return [f"*{check}*: {note} ({', '.join(those)})" for note, those in names.items()]


def in_page(page: str, name: str, text: str) -> str:
    """The text of a page with another text between the marks of this name.

    Raises:
        ValueError: when the page has no marks.
    """
    start, end = (mark.format(name=name) for mark in MARKS)
    before, found, rest = page.partition(start)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no place for the table: {start} and {end} on lines of their own")
    return f"{before}{start}\n\n{text}\n\n{end}{after}"
