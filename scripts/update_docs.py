"""Writes into the documents what is known elsewhere: the catalogue, the figures of docs/benchmarks/*.csv
and the results in docs/results/*.csv.

A table stands between the markers of its name, `<!-- catalogue:start -->` and `<!-- catalogue:end -->`.

python scripts/update_docs.py            # rewrite the files
python scripts/update_docs.py --check    # exit 1 and name the files that differ
"""

import argparse
import re
import sys
from pathlib import Path

from rltransformers.backbone import PRESETS, catalogue
from rltransformers.core.spec import Spec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # so that the benchmarks next to this file are found

from scripts import benchmark, reproduce  # noqa: E402
from scripts.results import report  # noqa: E402

FILES = (
    ROOT / "README.md",
    ROOT / "docs" / "backbone.md",
    ROOT / "docs" / "benchmarks" / "README.md",
    ROOT / "docs" / "results" / "README.md",
)


def main() -> int:
    """Exit status: 1 when ``--check`` finds a difference."""
    parser = argparse.ArgumentParser(description="Write the generated tables into the documents.")
    parser.add_argument("--check", action="store_true", help="change nothing, fail when a file differs")
    check = parser.parse_args().check
    different = []
    for path in FILES:
        if not path.exists():
            continue
        text = path.read_text()
        new = updated(text)
        if new != text:
            different.append(path)
            if not check:
                path.write_text(new)
    for path in different:
        print(f"{path.relative_to(ROOT)} {'differs; run scripts/update_docs.py' if check else 'written'}")
    return 1 if check and different else 0


def updated(text: str) -> str:
    """``text`` with everything between the markers replaced; unchanged where the markers are missing."""
    for name, table in TABLES.items():
        start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
        if start in text and end in text:
            before, rest = text.split(start, 1)
            _, after = rest.split(end, 1)
            text = f"{before}{start}\n{table()}\n{end}{after}"
    return text


def tables() -> str:
    """One table over all axes, one of the presets."""
    rows = [row(spec) for specs in catalogue().values() for spec in specs]
    variants = ["| axis | value | id | what it does | options | source |", "|---|---|---|---|---|---|", *rows]
    named = ["| preset | source | differs from the source |", "|---|---|---|"]
    named += [f"| `{name}` | {preset.paper} | {preset.deviation or '-'} |" for name, preset in PRESETS.items()]
    return "\n".join(["", *variants, "", *named, ""])


def row(spec: Spec) -> str:
    """One mechanism."""
    summary = spec.summary.rstrip(".")
    if re.match(r"[a-z]+,? [a-zA-Z]{2,}", summary):  # words, not a formula
        summary = summary[0].upper() + summary[1:]
    form = f"; here: {spec.traits.causal_form}" if spec.traits.causal_form else ""
    options = ", ".join(f"`{option}`" for option in spec.options_text()) or "-"
    cells = (f"`{spec.axis}`", f"`{spec.name}`", spec.id, summary + form, options, spec.paper)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def speed() -> str:
    """The targets of speed and memory, with what was measured."""
    return "\n".join(["", *benchmark.targets(benchmark.RESULTS), ""])


def benchmarks() -> str:
    """Every measured row."""
    return "\n".join(["", *benchmark.summary(benchmark.RESULTS), ""])


def results() -> str:
    """What the agents reach, one line per task."""
    return "\n".join(["", *report.summary(reproduce.RESULTS, reproduce.SUITES), ""])


def suites() -> str:
    """The suites that have results."""
    return "\n".join(["", *report.index(reproduce.RESULTS, reproduce.SUITES), ""])


TABLES = {"catalogue": tables, "speed": speed, "benchmarks": benchmarks, "results": results, "suites": suites}


if __name__ == "__main__":
    sys.exit(main())
