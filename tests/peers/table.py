"""Results of the conformance checks as Markdown for ``docs/results/conformance.md``."""

from collections.abc import Sequence
from dataclasses import dataclass

from rltransformers.conformance.checks import CHECKS, Result

START, END = "<!-- conformance:start -->", "<!-- conformance:end -->"


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
        *(
            f"- {row.library} `{row.name}`, {result.check}: {result.note}."
            for row in rows
            for result in row.results
            if result.failed
        ),
        "",
        "**Passed with a refusal, or does not apply**",
        "",
        *(f"- {line}." for name in CHECKS for line in _reasons(name, rows)),
    ]
    return "\n".join(lines)


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


def in_page(page: str, table: str) -> str:
    """The text of a page with another table between its marks.

    Raises:
        ValueError: when the page has no marks.
    """
    before, found, rest = page.partition(START)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise ValueError(f"the page has no place for the table: {START} and {END} on lines of their own")
    return f"{before}{START}\n\n{table}\n\n{END}{after}"
