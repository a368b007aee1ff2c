"""Results of the conformance checks as Markdown for ``docs/results/conformance.md``."""

from collections.abc import Sequence
from dataclasses import dataclass

from rltransformers.conformance.checks import CHECKS, Result
from rltransformers.zoo.report import line, opening, table_head
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
    reasons = [(row, result) for row in rows for result in row.results if result.note and not result.failed]
    lines = [
        *table_head(["policy", *CHECKS]),
        *(line([f"{row.library} {title(row.name)}", *map(_cell, row.results)]) for row in rows),
        "",
        "**Failed**",
        "",
        *_failed(rows),
        "",
        *opening("Why a check does not apply, or passes with a refusal", _reasons(rows, reasons)),
    ]
    return "\n".join(lines)


def _failed(rows: Sequence[Row]) -> list[str]:
    """A line for each reason, with its checks, and its policies where they are not all of the library."""
    failed = [(row, result) for row in rows for result in row.results if result.failed]
    lines = []
    for each in FAILURES:
        explained = [pair for pair in failed if each.explains(pair[0].library.split()[0], pair[0].name, pair[1].check)]
        those = list({row.name: row for row, _ in explained}.values())
        checks = dict.fromkeys(f"*{result.check}*" for _, result in explained)
        if explained:
            cases = len(those) < sum(row.library == those[0].library for row in rows)
            names = f" ({', '.join(f'`{row.name}`' for row in those)})" if cases else ""
            lines.append(f"- [{each.title}](#{each.anchor}): {', '.join(checks)}{names}.")
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


def title(name: str) -> str:
    """The class of a policy, the case behind it in words."""
    kind, comma, case = name.partition(", ")
    return f"`{kind}`{comma}{case}"


def _reasons(rows: Sequence[Row], noted: Sequence[tuple[Row, Result]]) -> list[str]:
    """A line for each check with its reasons, and a line below it for each reason with the policies it is true of."""
    lines = []
    for check in CHECKS:
        those: dict[str, list[Row]] = {}
        for row, result in noted:
            if result.check == check:
                those.setdefault(result.note, []).append(row)
        if those:
            lines.append(f"- *{check}*")
            lines += [f"    - {reason}: {', '.join(_named(rows, each))}" for reason, each in those.items()]
    return lines


def _named(rows: Sequence[Row], those: Sequence[Row]) -> list[str]:
    """The policies, by their library alone where the reason is true of all that it has here."""
    names = []
    for library in dict.fromkeys(row.library for row in those):
        own = [row for row in those if row.library == library]
        everything = len(own) == sum(row.library == library for row in rows)
        names += [library.split()[0]] if everything else [f"{library.split()[0]} `{row.name}`" for row in own]
    return names


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
