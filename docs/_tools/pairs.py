"""Which mechanisms can be combined: every pair of two slots, accepted or refused in the words that a config gets."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from rltransformers.backbone import PLAIN, BackboneConfig, catalogue
from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Spec

SIZES: dict[str, Any] = {"width": 24, "heads": 4, "layers": 2, "memory": 31, "ff_width": 8}
HEAD = ("one", "other", "allowed", "reason")


def entries() -> list[Spec]:
    """All mechanisms in the order of the docs."""
    return [spec for specs in catalogue().values() for spec in specs]


def label(spec: Spec) -> str:
    """Slot and name."""
    return f"{spec.axis}:{spec.name}"


def pairs(specs: Sequence[Spec]) -> Iterator[tuple[Spec, Spec]]:
    """Two mechanisms of different slots whose examples do not set the same field; a loss gives way to the other."""
    for one, other in combinations(specs, 2):
        if one.axis == other.axis:
            continue
        shared = set(one.example) & set(other.example) - {*SIZES}
        if not shared or "losses" in (one.axis, other.axis):
            yield one, other


def settings(one: Spec, other: Spec) -> dict[str, Any]:
    """The config of a pair on top of the plain stack, with a memory that is long enough for either."""
    values: dict[str, Any] = dict(SIZES)
    for spec in sorted((one, other), key=lambda each: each.axis != "losses"):
        values |= {key: value for key, value in spec.example.items() if key not in SIZES or key == "layers"}
    return values | ({"ff_width": None} if values.get("ff") == "none" else {})


def verdict(one: Spec, other: Spec) -> str:
    """Why the pair is refused; "" where it is not."""
    try:
        BackboneConfig(**{**PLAIN, **settings(one, other)})
    except ConfigError as error:
        return str(error)
    return ""


def write(folder: Path) -> None:
    """``pairs.csv`` and ``pairs.png``."""
    specs = entries()
    found = {(label(one), label(other)): verdict(one, other) for one, other in pairs(specs)}
    with (folder / "pairs.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEAD)
        writer.writerows([one, other, "no" if reason else "yes", reason] for (one, other), reason in found.items())
    draw(specs, found, folder / "pairs.png")


def read(folder: Path) -> dict[tuple[str, str], str]:
    """The reasons of ``pairs.csv``."""
    with (folder / "pairs.csv").open(newline="") as file:
        return {(row["one"], row["other"]): row["reason"] for row in csv.DictReader(file)}


def draw(specs: Sequence[Spec], found: Mapping[tuple[str, str], str], path: Path) -> None:
    """A square per pair: light where it is allowed, dark where it is refused, grey where it is none."""
    import matplotlib

    matplotlib.use("Agg")
    import numpy as np
    from matplotlib import pyplot
    from matplotlib.colors import ListedColormap

    names = [label(spec) for spec in specs]
    place = {name: index for index, name in enumerate(names)}
    grid = np.full((len(names), len(names)), 1)
    for (one, other), reason in found.items():
        grid[place[one], place[other]] = grid[place[other], place[one]] = 2 if reason else 0
    size = 0.14 * len(names) + 2.5
    figure, axes = pyplot.subplots(figsize=(size, size), constrained_layout=True)
    axes.imshow(grid, cmap=ListedColormap(["#dcefe0", "#efefef", "#8c2d2d"]), vmin=0, vmax=2)
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    borders = [index for index in range(1, len(specs)) if specs[index].axis != specs[index - 1].axis]
    for border in borders:
        axes.axhline(border - 0.5, color="white", linewidth=1.2)
        axes.axvline(border - 0.5, color="white", linewidth=1.2)
    refused = sum(map(bool, found.values()))
    axes.set_title(f"{len(found) - refused:,} pairs work together (green), {refused:,} are refused with a reason (red)")
    figure.savefig(path, dpi=80, metadata={"Software": None})
    pyplot.close(figure)
