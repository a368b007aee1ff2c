"""Writes what the catalogue says into README.md and docs/backbone.md, between the catalogue markers.

python scripts/update_docs.py            # rewrite the files
python scripts/update_docs.py --check    # exit 1 and name the files that differ
"""

import argparse
import sys
from pathlib import Path

from rltransformers.backbone import PRESETS, catalogue
from rltransformers.core.spec import Spec

ROOT = Path(__file__).resolve().parents[1]
FILES = (ROOT / "README.md", ROOT / "docs" / "backbone.md")
START, END = "<!-- catalogue:start -->", "<!-- catalogue:end -->"


def main() -> int:
    """Exit status: 1 when ``--check`` finds a difference."""
    parser = argparse.ArgumentParser(description="Write the catalogue tables into README.md and docs/backbone.md.")
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
    if START not in text or END not in text:
        return text
    before, rest = text.split(START, 1)
    _, after = rest.split(END, 1)
    return f"{before}{START}\n{tables()}\n{END}{after}"


def tables() -> str:
    """One table over all axes, one of the presets."""
    rows = [row(spec) for specs in catalogue().values() for spec in specs]
    variants = ["| axis | value | id | what it does | options | source |", "|---|---|---|---|---|---|", *rows]
    named = ["| preset | source | differs from the source |", "|---|---|---|"]
    named += [f"| `{name}` | {preset.paper} | {preset.deviation or '-'} |" for name, preset in PRESETS.items()]
    return "\n".join(["", *variants, "", *named, ""])


def row(spec: Spec) -> str:
    """One mechanism."""
    summary = spec.summary[:1].upper() + spec.summary[1:].rstrip(".")
    form = f"; here: {spec.traits.causal_form}" if spec.traits.causal_form else ""
    options = ", ".join(f"`{option}`" for option in spec.options_text()) or "-"
    cells = (f"`{spec.axis}`", f"`{spec.name}`", spec.id, summary + form, options, spec.paper)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
