"""Pictures of a task: learning curves, return against target return, or final scores where there are many variants."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from rltransformers.core.described import number
from rltransformers.functional.statistics import iqm, iqm_interval
from rltransformers.training.runs.curves import (
    COLORS,
    STYLES,
    Array,
    band,
    canvas,
    draw_curves,
    label_ends,
    plain,
    save_figure,
)
from rltransformers.zoo.aims import Runs
from rltransformers.zoo.suites import Task
from rltransformers.zoo.table import Row, score_of

MARKERS = "osD^vPX*"
ONE_LIST = 40  # variants that one list of final scores can hold; more stand in columns, by what they change
COLUMNS, SMALLEST_GROUP = 3, 3
COLUMN_WIDTH, NAME_WIDTH, LINE, HEADING_LINES = 4.6, 2.3, 0.17, 3  # inches, and a heading in lines
DARK = 0.6  # share of a scale from which on numbers are white


def draw(path: Path, task: Task, runs: Runs) -> bool:
    """Write the picture that fits the runs; False when there is nothing to draw."""
    present = {variant: rows for variant, rows in runs.items() if rows}
    if not present:
        return False
    if len(targets_of(present)) > 1:
        figure = by_target(task, present)
    elif all(row.transfers for rows in present.values() for row in rows) and task.transfers:
        figure = by_transfer(task, present)
    elif len(present) <= len(COLORS) and any(len(row.curve) > 1 for rows in present.values() for row in rows):
        figure = curves(task, present)
    elif len(present) > ONE_LIST:
        figure = catalogue(task, present)
    else:
        figure = finals(task, present)
    _save(figure, path)
    return True


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_figure(figure, path, metadata={"Software": None})


def targets_of(runs: Runs) -> list[float]:
    """Target returns that any of the runs was evaluated with."""
    results = [result for rows in runs.values() for row in rows for result in row.results]
    return sorted({float(each["target_return"]) for each in results if each["target_return"] is not None})


def curves(task: Task, runs: Runs) -> Figure:
    """IQM over seeds against steps with its 95 % band; variants without a curve as a horizontal line."""
    figure, axes = canvas(task.title)
    lines: dict[str, list[Array] | float] = {}
    for variant, rows in runs.items():
        learned = [curve_of(row) for row in rows if len(row.curve) > 1]
        lines[variant] = learned or float(iqm([row.score for row in rows]))
    ends = draw_curves(axes, lines)
    axes.set_xlabel("steps")
    axes.set_ylabel(task.score)
    if task.score == "success":
        axes.set_ylim(-0.03, 1.03)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    label_ends(axes, ends)
    return figure


def curve_of(row: Row) -> Array:
    """Steps and scores [N, 2] of the evaluations of a run."""
    return np.asarray(row.curve, dtype=np.float64)


def by_target(task: Task, runs: Runs) -> Figure:
    """Achieved against commanded return with the diagonal; variants without targets as a horizontal line."""
    figure, axes = canvas(task.title)
    targets = targets_of(runs)
    axes.plot(targets, targets, color="0.6", linewidth=1, linestyle=(0, (1, 1)))
    ends = [(targets[-1], "as asked", "0.45")]
    for place, (variant, rows) in enumerate(runs.items()):
        look: dict[str, Any] = {"color": COLORS[place % len(COLORS)], "linestyle": STYLES[place % len(STYLES)]}
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
            low, high = band(scores)
            axes.fill_between(own, low, high, color=look["color"], alpha=0.18, linewidth=0)
        ends.append((float(middle[-1]), variant, look["color"]))
    axes.set_xlabel("target return")
    axes.set_ylabel(task.score)
    label_ends(axes, ends)
    return figure


def by_transfer(task: Task, runs: Runs) -> Figure:
    """IQM of every variant where it was trained and, in the columns behind, where it was not, as colored numbers."""
    names = ["training", *task.transfers]
    scores = np.array(
        [
            [iqm([row.score for row in rows])]
            + [iqm([row.score_in(name, task.score) for row in rows]) for name in task.transfers]
            for rows in runs.values()
        ]
    )
    figure, axes = canvas(task.title, height=1.2 + 0.32 * len(runs))
    axes.grid(False)
    low, high = float(scores.min()), float(scores.max())
    axes.imshow(scores, cmap="Blues", vmin=low, vmax=high, aspect="auto")
    for (place, column), value in np.ndenumerate(scores):
        dark = high > low and (value - low) / (high - low) > DARK
        axes.text(
            column, place, number(value), ha="center", va="center", fontsize=9, color="white" if dark else "black"
        )
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks(range(len(runs)), list(runs))
    axes.tick_params(length=0)
    figure.supxlabel(f"{task.score}, IQM over seeds", fontsize=9, color="0.35")
    return figure


def draw_map(path: Path, title: str, columns: Mapping[str, float], lines: Mapping[str, Sequence[float | None]]) -> None:
    """A number per line and column, colored from the chance of its column (white) to 1; empty where none is."""
    chance = np.array(list(columns.values()), dtype=np.float64)
    scores = np.array([[np.nan if value is None else value for value in each] for each in lines.values()])
    shares = np.clip((scores - chance) / (1.0 - chance), 0.0, 1.0)
    figure = Figure(figsize=(2.2 + 0.62 * len(columns), 1.6 + 0.26 * len(lines)), layout="constrained")
    axes = figure.subplots()
    axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
    for (place, column), share in np.ndenumerate(shares):
        if not np.isnan(share):
            color = "white" if share > DARK else "black"
            axes.text(column, place, f"{scores[place, column]:.2f}", ha="center", va="center", fontsize=8, color=color)
    axes.set_xticks(range(len(columns)), list(columns), rotation=45, ha="left", fontsize=8.5)
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(lines)), list(lines), fontsize=8.5)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    figure.supxlabel("mean over seeds; white: chance, blue: the best there is", fontsize=8.5, color="0.35")
    _save(figure, path)


def finals(task: Task, runs: Runs) -> Figure:
    """Final scores and, beside them, means of curves where there are some: every seed, IQM with its 95 % interval."""
    panels = {task.score: {variant: [row.score for row in rows] for variant, rows in runs.items()}}
    means = {
        variant: [row.metric("curve_mean") for row in rows if len(row.curve) > 1] for variant, rows in runs.items()
    }
    learned = {variant: [mean for mean in each if mean is not None] for variant, each in means.items()}
    if any(learned.values()):
        panels["mean of the curve"] = learned
    figure, _ = canvas(task.title, height=1.2 + 0.32 * len(runs), panels=len(panels))
    for axes, (name, scores) in zip(figure.axes, panels.items(), strict=True):
        _scores(axes, scores, task.method)
        axes.set_xlabel(name)
    figure.supxlabel("every seed, IQM and 95 % interval", fontsize=9, color="0.35")
    return figure


def catalogue(task: Task, runs: Runs) -> Figure:
    """Final scores of many variants in columns, under the name of what they change: every seed, IQM, 95 % interval.

    A dotted line stands at the IQM of the method.
    """
    columns = in_columns(by_setting(task, runs), COLUMNS)
    tallest = max(sum(HEADING_LINES + len(names) for _, names in column) for column in columns)
    width, height = COLUMN_WIDTH * len(columns), 0.7 + LINE * tallest
    figure = Figure(figsize=(width, height))
    figure.text(0.1 / width, 1 - 0.2 / height, task.title, fontsize=11, va="center")
    legend = f"{task.score}: every seed, IQM and 95 % interval; dotted: {task.method}"
    figure.text(0.1 / width, 0.15 / height, legend, fontsize=9, color="0.35", va="center")
    scores = {variant: [row.score for row in rows] for variant, rows in runs.items()}
    low, high = min(map(min, scores.values())), max(map(max, scores.values()))
    margin = 0.05 * ((high - low) or 1.0)
    level = float(iqm(scores[task.method])) if task.method in scores else None
    drawn = COLUMN_WIDTH - NAME_WIDTH - 0.15
    for place, column in enumerate(columns):
        bottom, left = height - 0.35, COLUMN_WIDTH * place + NAME_WIDTH
        for name, names in column:
            tall = LINE * len(names)
            bottom -= LINE * HEADING_LINES + tall
            axes = figure.add_axes((left / width, (bottom + LINE) / height, drawn / width, tall / height))
            _scores(axes, {variant: scores[variant] for variant in names}, task.method)
            if level is not None:
                axes.axvline(level, color=COLORS[0], linewidth=0.8, linestyle=":")
            axes.set_xlim(low - margin, high + margin)
            axes.set_title(name, fontsize=9, fontweight="bold", loc="left", x=(0.1 - NAME_WIDTH) / drawn, pad=3)
            axes.tick_params(labelsize=7.5, length=2, pad=1.5)
            plain(axes)
    return figure


def by_setting(task: Task, runs: Runs) -> dict[str, list[str]]:
    """Variants by the last word of the first setting that they change; small groups together at the end."""
    found: dict[str, list[str]] = {}
    for variant in runs:
        changes = [key for key in task.variants[variant] if "." in key]
        found.setdefault(changes[0].rpartition(".")[2] if changes else "", []).append(variant)
    large = {name: names for name, names in found.items() if name and len(names) >= SMALLEST_GROUP}
    rest = [variant for name, names in found.items() if name not in large for variant in names]
    return large | ({"other settings": rest} if rest else {})


def in_columns(named: Mapping[str, Sequence[str]], count: int) -> list[list[tuple[str, list[str]]]]:
    """Groups in their order, in ``count`` columns of about equal height; a group that is cut goes on in the next."""
    tallest = -(-(sum(map(len, named.values())) + HEADING_LINES * (len(named) + count - 1)) // count)
    columns: list[list[tuple[str, list[str]]]] = [[]]
    room = tallest
    for name, names in named.items():
        part: list[str] = []
        for place, variant in enumerate(names):
            if (not part and room <= HEADING_LINES) or room == 0:
                columns.append([])
                room, part = tallest, []
            if not part:
                columns[-1].append((f"{name}, continued" if place else name, part))
                room -= HEADING_LINES
            part.append(variant)
            room -= 1
    return columns


def _scores(axes: Any, scores: Mapping[str, Sequence[float]], method: str) -> None:
    """A line per variant with its name: every seed, IQM with its interval; the method in color."""
    for place, (variant, values) in enumerate(scores.items()):
        if not values:
            continue
        color = COLORS[0] if variant == method else "0.25"
        axes.scatter(values, np.full(len(values), place), s=14, color=color, alpha=0.35, linewidths=0)
        axes.plot(iqm_interval(values), [place, place], color=color, linewidth=2)
        axes.plot(iqm(values), place, "o", color=color, markersize=6)
    axes.set_yticks(range(len(scores)), list(scores))
    axes.set_ylim(len(scores) - 0.4, -0.6)
