"""Pictures of several runs: curves over seeds with a band, and their names beside the right border."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.text import Text
from numpy.typing import NDArray

from rltransformers.functional.statistics import iqm, iqm_interval

# Okabe and Ito's colors, told apart with every kind of color vision.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#999999")
STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (3, 3)), (0, (1, 2)), (0, (8, 2)))
Array = NDArray[np.float64]


Ends = list[tuple[float, str, str]]
"""Height, name and color at the right end of every line."""


def draw_curves(axes: Any, lines: Mapping[str, Sequence[Array] | float]) -> Ends:
    """Draw the IQM over the curves [N, 2] (place, value) of every name, with its 95 % interval; a number is a level.

    Returns what ``label_ends`` writes. The only curve of a name says so where others have several.
    """
    most = max((len(each) for each in lines.values() if not isinstance(each, float)), default=0)
    ends: Ends = []
    for place, (name, curves) in enumerate(lines.items()):
        color, style = COLORS[place % len(COLORS)], STYLES[place % len(STYLES)]
        if isinstance(curves, float):
            axes.axhline(curves, color=color, linestyle=style, linewidth=1.2)
            ends.append((curves, name, color))
            continue
        steps, scores = on_one_grid(curves)
        middle = iqm(scores, axis=0)
        marker = "o" if len(steps) == 1 else None
        axes.plot(steps, middle, color=color, linestyle=style, linewidth=1.8, marker=marker, zorder=3 - 0.01 * place)
        if len(curves) > 1:
            low, high = band(scores)
            axes.fill_between(steps, low, high, color=color, alpha=0.18, linewidth=0)
        ends.append((float(middle[-1]), f"{name} (1 seed)" if len(curves) == 1 < most else name, color))
    axes.set_xlim(left=0)
    return ends


def on_one_grid(curves: Sequence[Array]) -> tuple[Array, Array]:
    """Places [N] and values [curves, N] of curves [N, 2]: every curve at the places of all, from where all have begun
    to where the first one ends.

    Where no place is common, the last point of each stands at the mean of their places.
    """
    each = [np.asarray(curve, dtype=np.float64) for curve in curves]
    first, last = max(curve[0, 0] for curve in each), min(curve[-1, 0] for curve in each)
    places = np.unique(np.concatenate([curve[:, 0] for curve in each]))
    places = places[(places >= first) & (places <= last)]
    if not len(places):
        return np.array([np.mean([curve[-1, 0] for curve in each])]), np.array([[curve[-1, 1]] for curve in each])
    return places, np.stack([np.interp(places, curve[:, 0], curve[:, 1]) for curve in each])


def band(scores: Array) -> tuple[Array, Array]:
    """95 % interval of the IQM at every point of scores [runs, points]."""
    limits = np.array([iqm_interval(column) for column in scores.T])
    return limits[:, 0], limits[:, 1]


def label_ends(axes: Any, ends: Ends) -> None:
    """Names at the right end of their lines, moved apart where they would cover each other; behind all limits."""
    ordered = sorted(ends)
    places = apart([height for height, _, _ in ordered], *axes.get_ylim())
    for place, (_, name, color) in zip(places, ordered, strict=True):
        axes.annotate(
            name,
            (1.0, place),
            xycoords=("axes fraction", "data"),
            xytext=(6, 0),
            textcoords="offset points",
            color=color,
            fontsize=9,
            va="center",
            annotation_clip=False,
        )


def apart(heights: Sequence[float], bottom: float, top: float) -> list[float]:
    """Rising heights, moved as little as needed to stand a line of text apart and below ``top``; many fill it all."""
    gap = min(0.055, 1 / max(len(heights), 1)) * (top - bottom)
    places: list[float] = []
    for height in heights:
        places.append(max(height, places[-1] + gap) if places else height)
    ceiling = top
    for place in reversed(range(len(places))):
        places[place] = min(places[place], ceiling)
        ceiling = places[place] - gap
    return places


def canvas(title: str, height: float = 4.0, panels: int = 1, below: bool = False) -> tuple[Figure, Any]:
    """A figure without pyplot (nothing global changes and no display is needed) and its first axes.

    Panels stand side by side with one y-axis, or ``below`` each other with an axis each, of this height.
    """
    figure = Figure(figsize=(7.2, height * panels if below else height), layout="constrained")
    first = figure.subplots(*((panels, 1) if below else (1, panels)), sharey=not below, squeeze=False)[0, 0]
    first.set_title(title, fontsize=11, loc="left")
    for axes in figure.axes:
        plain(axes)
    return figure, first


def save_figure(figure: Figure, path: Path, **options: Any) -> None:
    """Write a picture whose names stand as they are: a $ in them begins no formula."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    figure.savefig(path, dpi=120, **options)


def plain(axes: Any) -> None:
    """A light grid and no box."""
    axes.grid(True, color="0.92", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
