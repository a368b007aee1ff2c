"""The pictures of docs/mechanisms, as SVG: what mechanisms read, and with which weights."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from docs._tools import masks, weights
from docs._tools.masks import STEPS, Cells
from rltransformers.core.spec import Spec

ZERO = torch.zeros(1, dtype=torch.int)
CELL, GAP = 6, 20
"""Pixels of a step, and around a square of them."""
SMALL_CELL, ACROSS, FEW = 3, 5, 3
"""In an overview: pixels of a step, squares in a row, and up to how many pictures need none."""
TEXT = "#808080"
"""Color of words, which can be seen on white and on black."""
SOURCES = {axis: source for source in (masks, weights) for axis in source.PICTURES}
"""What draws the pictures of a slot."""
SHOWS = {axis: "Mask of" if source is masks else "Weights with" for axis, source in SOURCES.items()}
"""What a picture shows of a mechanism."""


def pages(folder: Path) -> dict[Path, str]:
    """The text (SVG) of every picture: one per mechanism, and one of all mechanisms of a slot with several."""
    texts = {}
    for axis, source in SOURCES.items():
        panels = {name: source.panels_of(axis, name) for name in source.PICTURES[axis]}
        for name, own in panels.items():
            texts[folder / path(axis, name)] = drawing(own, CELL, len(own), axes=True)
        if len(panels) > FEW:
            examples = [(name, own[source.EXAMPLE][1]) for name, own in panels.items()]
            texts[folder / path(axis)] = drawing(examples, SMALL_CELL, ACROSS)
    return texts


def path(axis: str, name: str = "") -> str:
    """Of a picture, from the pages."""
    return f"pictures/{axis}-{name}.svg" if name else f"pictures/all-{axis}.svg"


def settings(spec: Spec) -> dict[str, Any]:
    """What a backbone is built with whose picture is shown; nothing where there is none."""
    source = SOURCES.get(spec.axis)
    return source.PICTURES[spec.axis].get(spec.name, {}) if source else {}


def overview(axis: str) -> Iterator[str]:
    """The lines of a page that show all pictures of a slot and say how to read them."""
    if axis not in SOURCES:
        return
    names = list(SOURCES[axis].PICTURES[axis])
    which = (
        "A picture shows" if len(names) > FEW else f"The pictures of {', '.join(f'`{name}`' for name in names)} show"
    )
    yield f"{which} the first {STEPS} steps of an episode. Row t is step t, its columns are the steps up to t."
    yield SOURCES[axis].legend(axis)
    if len(names) > FEW:
        text = f"{SHOWS[axis]} {', '.join(names)}, with the settings of their sections; one head each."
        yield from ["", f"![{text}]({path(axis)})"]
    yield ""


def line(spec: Spec) -> Iterator[str]:
    """The lines of a page that show a mechanism, if there is a picture of it."""
    if settings(spec):
        yield f"![{SHOWS[spec.axis]} {spec.name}: {spec.summary.replace('`', '')}]({path(spec.axis, spec.name)})"
        yield ""


def drawing(panels: Sequence[tuple[str, dict[str, Cells]]], cell: int, across: int, axes: bool = False) -> str:
    """Squares with their titles in rows of ``across``, as SVG; a step has ``cell`` pixels."""
    side = STEPS * cell + GAP
    down = -(-len(panels) // across)
    width, height = across * side + GAP, down * side + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="11" fill="{TEXT}">'
    ]
    for number, (name, cells) in enumerate(panels):
        x, y = GAP + number % across * side, GAP + number // across * side
        if name:
            parts.append(f'<text x="{x}" y="{y - 6}">{name}</text>')
        parts.append(f'<g transform="translate({x} {y}) scale({cell})" shape-rendering="crispEdges">')
        parts += [f'<path fill="{color}" d="{outline(chosen)}"/>' for color, chosen in cells.items() if chosen.any()]
        parts.append("</g>")
    if axes:
        parts.append(f'<text x="{GAP}" y="{height - 6}">earlier steps →</text>')
        parts.append(f'<text transform="translate(7 {GAP}) rotate(90)">steps →</text>')
    return "\n".join([*parts, "</svg>", ""])


def outline(cells: Cells) -> str:
    """The path around the runs of cells in every row."""
    return "".join(
        f"M{start} {row}h{end - start}v1h{start - end}z"
        for row, columns in enumerate(cells.int())
        for start, end in torch.nonzero(columns.diff(prepend=ZERO, append=ZERO)).view(-1, 2).tolist()
    )
