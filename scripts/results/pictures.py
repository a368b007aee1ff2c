"""Pictures of a task: learning curves, return against target return, or final scores where there are many variants."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from numpy.typing import NDArray

from rltransformers.functional.statistics import iqm, stratified_bootstrap
from scripts.results.aims import Runs, interval, number
from scripts.results.suites import Task
from scripts.results.table import Row, score_of

# Okabe and Ito's colours, told apart with every kind of colour vision; the method in the strongest.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#999999")
STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (3, 3)), (0, (1, 2)), (0, (8, 2)))
MARKERS = "osD^vPX*"
Array = NDArray[np.float64]


def draw(path: Path, task: Task, runs: Runs) -> bool:
    """Write the picture that fits the runs; False when there is nothing to draw."""
    present = {variant: rows for variant, rows in runs.items() if rows}
    if not present:
        return False
    if len(targets_of(present)) > 1:
        figure = by_target(task, present)
    elif all(row.transfers for rows in present.values() for row in rows) and task.transfers:
        figure = by_transfer(task, present)
    elif len(present) <= len(COLOURS) and any(len(row.curve) > 1 for rows in present.values() for row in rows):
        figure = curves(task, present)
    else:
        figure = finals(task, present)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    return True


def targets_of(runs: Runs) -> list[float]:
    """Target returns that any of the runs was evaluated with."""
    results = [result for rows in runs.values() for row in rows for result in row.results]
    return sorted({float(each["target_return"]) for each in results if each["target_return"] is not None})


def curves(task: Task, runs: Runs) -> Figure:
    """IQM over seeds against steps with its 95 % band; variants without a curve as a horizontal line."""
    figure, axes = _canvas(task.title)
    ends = []
    for place, (variant, rows) in enumerate(runs.items()):
        colour, style = COLOURS[place], STYLES[place]
        learned = [row for row in rows if len(row.curve) > 1]
        if not learned:
            level = float(iqm([row.score for row in rows]))
            axes.axhline(level, color=colour, linestyle=style, linewidth=1.2)
            ends.append((level, variant, colour))
            continue
        steps, scores = on_one_grid(learned)
        middle = iqm(scores, axis=0)
        axes.plot(steps, middle, color=colour, linestyle=style, linewidth=1.8, zorder=3 - 0.01 * place)
        if len(learned) > 1:
            low, high = _band(scores)
            axes.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0)
        ends.append((float(middle[-1]), variant, colour))
    axes.set_xlabel("steps")
    axes.set_ylabel(task.score)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    _label_ends(axes, ends)
    return figure


def on_one_grid(rows: Sequence[Row]) -> tuple[Array, Array]:
    """Steps [N] and scores [runs, N]: every run at the steps of all, from where all have begun."""
    each = [np.asarray(row.curve, dtype=np.float64) for row in rows]
    first, last = max(curve[0, 0] for curve in each), min(curve[-1, 0] for curve in each)
    steps = np.unique(np.concatenate([curve[:, 0] for curve in each]))
    steps = steps[(steps >= first) & (steps <= last)]
    return steps, np.stack([np.interp(steps, curve[:, 0], curve[:, 1]) for curve in each])


def by_target(task: Task, runs: Runs) -> Figure:
    """Achieved against commanded return with the diagonal; variants without targets as a horizontal line."""
    figure, axes = _canvas(task.title)
    targets = targets_of(runs)
    axes.plot(targets, targets, color="0.6", linewidth=1, linestyle=(0, (1, 1)))
    ends = [(targets[-1], "as asked", "0.45")]
    for place, (variant, rows) in enumerate(runs.items()):
        look: dict[str, Any] = {"color": COLOURS[place % len(COLOURS)], "linestyle": STYLES[place % len(STYLES)]}
        asked = [row for row in rows if len(row.results) > 1]
        if not asked:
            level = float(iqm([row.score for row in rows]))
            axes.axhline(level, linewidth=1.2, **look)
            ends.append((level, variant, look["color"]))
            continue
        own = targets_of({variant: asked})
        scores = np.array([[score_of(row.results, task.score, target) for target in own] for row in asked])
        middle = iqm(scores, axis=0)
        axes.plot(own, middle, marker=MARKERS[place % len(MARKERS)], markersize=5, linewidth=1.6, **look)
        if len(asked) > 1:
            low, high = _band(scores)
            axes.fill_between(own, low, high, color=look["color"], alpha=0.18, linewidth=0)
        ends.append((float(middle[-1]), variant, look["color"]))
    axes.set_xlabel("target return")
    axes.set_ylabel(task.score)
    _label_ends(axes, ends)
    return figure


def by_transfer(task: Task, runs: Runs) -> Figure:
    """IQM of every variant where it was trained and, in the columns behind, where it was not, as coloured numbers."""
    names = ["training", *task.transfers]
    scores = np.array(
        [
            [iqm([row.score for row in rows])]
            + [iqm([score_of([row.transfers[name]], task.score) for row in rows]) for name in task.transfers]
            for rows in runs.values()
        ]
    )
    figure, axes = _canvas(task.title, height=1.2 + 0.32 * len(runs))
    axes.grid(False)
    low, high = float(scores.min()), float(scores.max())
    axes.imshow(scores, cmap="Blues", vmin=low, vmax=high, aspect="auto")
    for (place, column), value in np.ndenumerate(scores):
        dark = high > low and (value - low) / (high - low) > 0.6
        axes.text(
            column, place, number(value), ha="center", va="center", fontsize=9, color="white" if dark else "black"
        )
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks(range(len(runs)), list(runs))
    axes.tick_params(length=0)
    figure.supxlabel(f"{task.score}, IQM over seeds", fontsize=9, color="0.35")
    return figure


def finals(task: Task, runs: Runs) -> Figure:
    """Final scores and, beside them, means of curves where there are some: every seed, IQM with its 95 % interval."""
    panels = {task.score: {variant: [row.score for row in rows] for variant, rows in runs.items()}}
    means = {
        variant: [row.metric("curve_mean") for row in rows if len(row.curve) > 1] for variant, rows in runs.items()
    }
    learned = {variant: [mean for mean in each if mean is not None] for variant, each in means.items()}
    if any(learned.values()):
        panels["mean of the curve"] = learned
    figure, first = _canvas(task.title, height=1.2 + 0.32 * len(runs), panels=len(panels))
    for axes, (name, groups) in zip(figure.axes, panels.items(), strict=True):
        for place, values in enumerate(groups.values()):
            if not values:
                continue
            colour = COLOURS[0] if place == 0 else "0.25"
            axes.scatter(values, np.full(len(values), place), s=14, color=colour, alpha=0.35, linewidths=0)
            axes.plot(interval(values), [place, place], color=colour, linewidth=2)
            axes.plot(iqm(values), place, "o", color=colour, markersize=6)
        axes.set_xlabel(name)
    first.set_yticks(range(len(runs)), list(runs))
    first.set_ylim(len(runs) - 0.4, -0.6)
    figure.supxlabel("every seed, IQM and 95 % interval", fontsize=9, color="0.35")
    return figure


def _band(scores: Array) -> tuple[Array, Array]:
    """95 % interval of the IQM at every point of scores [runs, points]."""
    limits = np.array([stratified_bootstrap([column], np.random.default_rng(0)) for column in scores.T])
    return limits[:, 0], limits[:, 1]


def _label_ends(axes: Any, ends: Sequence[tuple[float, str, str]]) -> None:
    """Names at the right end of their lines, moved apart where they would cover each other."""
    ordered = sorted(ends)
    places = apart([height for height, _, _ in ordered], *axes.get_ylim())
    for place, (_, name, colour) in zip(places, ordered, strict=True):
        axes.annotate(
            name,
            (1.0, place),
            xycoords=("axes fraction", "data"),
            xytext=(6, 0),
            textcoords="offset points",
            color=colour,
            fontsize=9,
            va="center",
            annotation_clip=False,
        )


def apart(heights: Sequence[float], bottom: float, top: float) -> list[float]:
    """Rising heights, moved as little as needed to stand a line of text apart and below ``top``."""
    gap = 0.055 * (top - bottom)
    places: list[float] = []
    for height in heights:
        places.append(max(height, places[-1] + gap) if places else height)
    ceiling = top
    for place in reversed(range(len(places))):
        places[place] = min(places[place], ceiling)
        ceiling = places[place] - gap
    return places


def _canvas(title: str, height: float = 4.0, panels: int = 1) -> tuple[Figure, Any]:
    """A figure without pyplot (nothing global changes and no display is needed) and its first axes."""
    figure = Figure(figsize=(7.2, height), layout="constrained")
    first = figure.subplots(1, panels, sharey=True, squeeze=False)[0, 0]
    first.set_title(title, fontsize=11, loc="left")
    for axes in figure.axes:
        axes.grid(True, color="0.92", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, first
