"""Tables of a suite from its CSV: docs/results/SUITE.md with its pictures, and the rows of summaries."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from rltransformers.core.described import count, number
from rltransformers.core.errors import ConfigError, did_you_mean
from rltransformers.functional.statistics import iqm, probability_of_improvement
from rltransformers.training.runs.comparison import estimate, median
from rltransformers.zoo import pictures
from rltransformers.zoo.aims import WORDS, Runs, judge
from rltransformers.zoo.suites import Suite, Task, read_suite
from rltransformers.zoo.table import Row, current, read_rows, score_of

METRIC_NAMES = {
    "steps_per_cpu_second": "steps/CPU s",
    "state_bytes": "state, bytes",
    "wall_seconds": "seconds",
    "curve_mean": "mean of the curve",
    "curve_max": "highest evaluation",
    "equal_time": "score in the CPU time of {method}",
    "training_max": "highest mean return in training",
}
MAX_NAMED = 5  # variants in a cell of the summary
MAX_LINES = 12  # of a table that stands open
MAX_COLUMNS = 7  # of a part of a map, as many as a page is wide
SUMMARY = ("task", "ours", "baseline", "target", "met")
SELECTION = ("task", "ours", "compared with", "best other", "targets met")
LEGEND = (
    "Scores are interquartile means over seeds [95 % interval]; baseline: other agents and our "
    "own variants on the same task, with their seeds where these are fewer; target: the "
    "score to reach; met: yes, no, or open while runs are missing."
)


def write(suite: Suite, results: Path) -> list[Path]:
    """Write table and pictures of what the CSV in ``results`` holds; the paths that were written."""
    rows = rows_of(suite, results)
    written = []
    if suite.text.overview == "map" and rows:
        written.append(results / f"{suite.name}.png")
        pictures.draw_map(written[0], suite.text.title, *map_of(suite, rows))
    for name, task in suite.tasks.items():
        path = results / f"{suite.name}-{name}.png"
        if pictures.draw(path, task, runs_of(suite, name, rows)):
            written.append(path)
    if rows:
        path = results / f"{suite.name}.md"
        path.write_text(page(suite, rows), encoding="utf-8")
        written.append(path)
    return written


def rows_of(suite: Suite, results: Path) -> list[Row]:
    """Rows of the suite's CSV in ``results`` that are of today's configs, in the order of the suite."""
    return list(current(suite, read_rows(results / f"{suite.name}.csv")).values())


def runs_of(suite: Suite, task: str, rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows of a task by variant, in the order of the suite."""
    runs: dict[str, list[Row]] = {variant: [] for variant in suite.tasks[task].variants}
    for row in rows:
        if row.task == task:
            runs[row.variant].append(row)
    return runs


def page(suite: Suite, rows: Sequence[Row]) -> str:
    """Text of docs/results/SUITE.md."""
    return "\n".join(_lines(suite, rows)) + "\n"


def _lines(suite: Suite, rows: Sequence[Row]) -> Iterator[str]:
    yield from [f"# {suite.text.title}", *(["", suite.text.found.strip()] if suite.text.found else [])]
    if suite.text.overview is not None:
        overview = _map(suite, rows) if suite.text.overview == "map" else _overview(suite, suite.text.overview, rows)
        yield from [*overview, *(["", suite.text.overview_note] if suite.text.overview_note else [])]
    brief = suite.text.overview is not None and len(suite.tasks) > MAX_LINES  # the overview has every task
    if brief:
        yield from ["", "## Task by task"]
    for name, task in suite.tasks.items():
        runs = runs_of(suite, name, rows)
        if any(runs.values()):
            shown = list(section(suite, name, runs))
            yield ""
            yield from opening(task.title, shown) if brief else [f"## {task.title}", "", *shown]
    hours = sum(row.wall_seconds for row in rows) / 3600
    yield from ["", "## How to read and repeat this", ""]
    yield from [f"{LEGEND} More: [how to read them](README.md#how-to-read-them).", ""]
    yield f"`rltransformers suite {suite.name}` makes this page, its pictures and [the CSV]({suite.name}.csv)"
    yield f"with one row per run: {len(rows)} {'run' if len(rows) == 1 else 'runs'}, {hours:.1f} hours in all."
    yield ""
    for label, values in _origin(rows):
        yield f"- {label}: {'; '.join(dict.fromkeys(values))}"


def _overview(suite: Suite, metric: str, rows: Sequence[Row]) -> Iterator[str]:
    """Mean over seeds of one metric: a column per variant and per published figure, the means over the tasks that the
    method and its baseline have, of all variants that have them too, over those that all variants with runs of half of
    the tasks have, but those of single tasks, and that the published figures have too, and a line per task with runs.
    """
    variants = list(dict.fromkeys(variant for task in suite.tasks.values() for variant in task.variants))
    published = list(dict.fromkeys(name for task in suite.tasks.values() for name in task.published))
    means: dict[str, list[float | None]] = {}
    for name, task in suite.tasks.items():
        runs = runs_of(suite, name, rows)
        budget = _budget(task, runs)
        values = [[row.metric(metric, budget) for row in runs.get(variant, [])] for variant in variants]
        if any(values):
            known = [[value for value in each if value is not None] for each in values]
            own = [statistics.fmean(each) if each else None for each in known]
            means[task.title] = [*own, *(task.published.get(each) for each in published)]
    first = next(iter(suite.tasks.values()))
    label = METRIC_NAMES.get(metric, metric).format(method=first.method)
    yield from ["", f"## All tasks: {label}, mean over seeds", ""]
    yield from table_head(["task", *variants, *published])
    table = list(means.values())
    common = [all(variant in task.variants for task in suite.tasks.values()) for variant in variants]
    of_half = [2 * sum(cells[column] is not None for cells in table) >= len(table) for column in range(len(variants))]
    run = [column for column, each in enumerate(common) if each and of_half[column]]
    cited = [len(variants) + column for column in range(len(published))]
    pair = [column for column in run if variants[column] in (first.method, first.compared_with)]
    of_pair = [cells for cells in table if all(cells[column] is not None for column in pair)]
    beside = [column for column in run if all(cells[column] is not None for cells in of_pair)]
    if suite.text.overview_means:
        yield from _means(table, [beside, run, [*run, *cited]])
    yield from (line([title, *map(number, each)]) for title, each in means.items())


def map_of(suite: Suite, rows: Sequence[Row]) -> tuple[dict[str, float], dict[str, list[float | None]]]:
    """Columns of a map with their chance, and the mean over seeds in each for every variant with runs."""
    columns: dict[str, float] = {}
    lines: dict[str, list[float | None]] = {}
    for name, task in suite.tasks.items():
        runs = runs_of(suite, name, rows)
        for variant in task.variants:
            lines.setdefault(variant, [])
        for place in (None, *task.transfers):
            for variant, values in lines.items():
                scores = [row.score_in(place, task.score) for row in runs.get(variant, [])]
                values += [None] * (len(columns) - len(values))  # a variant that earlier tasks do not have
                values.append(statistics.fmean(scores) if scores else None)
            label = name.replace("_", " ") + ("" if place is None else f", {place}")
            columns[label] = task.chance
    return columns, {variant: values for variant, values in lines.items() if any(v is not None for v in values)}


def _map(suite: Suite, rows: Sequence[Row]) -> Iterator[str]:
    """The tables of a map, each as wide as a page, with bytes of state and the time of a step in the environments of
    ``transfers``; a variant or a column without runs is left out.
    """
    columns, lines = map_of(suite, rows)
    yield from ["", "## All of it: mean over seeds", "", f"![{suite.text.title}]({suite.name}.png)"]
    cells = {variant: list(map(number, values)) for variant, values in lines.items()}
    for variant in lines:
        own = [row for row in rows if row.variant == variant]
        seeds = [sum(row.task == name for row in own) for name, task in suite.tasks.items() if variant in task.variants]
        times = [
            result["microseconds"]
            for row in own
            for name, result in row.transfers.items()
            if suite.tasks[row.task].transfers[name].acting == "compiled"
        ]
        counts = "-".join(map(str, sorted({min(seeds), max(seeds)})))
        cells[variant] += [counts, number(median(row.metric("state_bytes") for row in own)), number(median(times))]
    head = [*columns, "seeds", "state, bytes", "µs per step, compiled"]
    wanted = [column for column in range(len(head)) if any(each[column] != "-" for each in cells.values())]
    for first in range(0, len(wanted), MAX_COLUMNS):
        part = wanted[first : first + MAX_COLUMNS]
        yield ""
        yield from table_head(["memory", *(head[column] for column in part)])
        for variant, each in cells.items():
            if any(each[column] != "-" for column in part):
                yield line([variant, *(each[column] for column in part)])


def _means(table: Sequence[Sequence[float | None]], selections: Sequence[Sequence[int]]) -> Iterator[str]:
    """A line per selection of columns, each wider than the one before: means over the lines of ``table`` that have them
    all, unless there are none, or the next selection has as many.
    """
    lines = []
    for columns in selections:
        picked = ([cells[column] for column in columns] for cells in table)
        lines.append([[value for value in each if value is not None] for each in picked if None not in each])
    for columns, complete, wider in zip(selections, lines, [*lines[1:], []], strict=True):
        if len(complete) > len(wider):
            means = dict(zip(columns, map(statistics.fmean, zip(*complete, strict=True)), strict=True))
            yield line(
                [f"mean of {count(len(complete), 'task')}", *(number(means.get(each)) for each in range(len(table[0])))]
            )


def section(suite: Suite, name: str, runs: Runs) -> Iterator[str]:
    """Picture, scores, returns by target and aims of one task."""
    task = suite.tasks[name]
    yield from [f"![{task.title}]({suite.name}-{name}.png)", ""]
    metrics = suite.text.metrics
    against = task.compared_with
    head = ["variant", f"{task.score}, IQM [95 %]", "every seed"]
    head += [f"P(better than {against})"] if against else []
    names = (METRIC_NAMES.get(each, each).format(method=task.method) for each in metrics)
    table = table_head([*head, "parameters", "steps", "minutes", *names])
    budget = _budget(task, runs)
    for variant, rows in runs.items():
        if not rows and len(task.variants) > MAX_NAMED:
            continue  # a long list says below how many are missing
        cells = [variant, estimate([row.score for row in rows]), each_seed(rows)]
        cells += [_improvement(rows, runs[against], variant == against)] if against else []
        cells += [number(median(row.metric(column) for row in rows)) for column in ("parameters", "steps")]
        seconds = median(row.wall_seconds for row in rows if row.parameters is not None)
        cells += ["-" if seconds is None else f"{seconds / 60:.1f}"]
        cells += [number(median(row.metric(metric, budget) for row in rows)) for metric in metrics]
        table.append(line(cells))
    yield from folded("variants", table)
    missing = sum(not rows for rows in runs.values())
    if missing and len(task.variants) > MAX_NAMED:
        yield from ["", f"{missing} further variants have no runs yet."]
    yield from _by_target(task, runs)
    yield from _by_transfer(task, runs)
    yield from _recordings(runs)
    verdicts = judge(suite, name, runs)
    if verdicts:
        yield ""
        yield from table_head(["target", "got", "met"])
        yield from (line([each.aim, each.got, each.word]) for each in verdicts)
    if task.note:
        yield from ["", task.note]


def _budget(task: Task, runs: Runs) -> float | None:
    """Processor seconds of the method."""
    return median(row.cpu_seconds for row in runs[task.method])


def summary(results: Path, suites: Path) -> list[str]:
    """Lines for docs/results/README.md: one table per suite that has results."""
    lines = [LEGEND]
    for suite, rows in finished(results, suites):
        lines += ["", f"**[{suite.text.title}]({suite.name}.md)**", ""]
        tasks = [name for name in suite.tasks if any(row.task == name for row in rows)]
        lines += [*table_head(SUMMARY), *(summary_row(suite, name, runs_of(suite, name, rows)) for name in tasks)]
    return lines if len(lines) > 1 else ["No results yet: `rltransformers suite SUITE`."]


def selection(results: Path, suites: Path, tasks: Mapping[str, Sequence[str]]) -> list[str]:
    """Lines of a short table with these tasks, named by suite, in this order; the suites' pages have all variants.

    Raises:
        ConfigError: for a suite without results, or a task that it does not have.
    """
    known = {suite.name: (suite, rows) for suite, rows in finished(results, suites)}
    lines = table_head(SELECTION)
    for suite_name, names in tasks.items():
        if suite_name not in known:
            raise ConfigError(f"no results of a suite {suite_name!r}; {did_you_mean(suite_name, known)}")
        suite, rows = known[suite_name]
        for name in names:
            if name not in suite.tasks:
                raise ConfigError(f"suite {suite_name} has no task {name!r}; {did_you_mean(name, suite.tasks)}")
            lines.append(selection_row(suite, name, runs_of(suite, name, rows)))
    return lines


def selection_row(suite: Suite, name: str, runs: Runs) -> str:
    """One task: the method, the variant that it is compared with, the best other variant, targets met of all."""
    task = suite.tasks[name]
    ours, verdicts = runs[task.method], judge(suite, name, runs)
    scores = {variant: float(iqm([row.score for row in rows])) for variant, rows in runs.items() if rows}
    others = {variant: score for variant, score in scores.items() if variant != task.method}
    best = max(others, key=lambda variant: scores[variant], default=None)
    named = [variant for variant in (task.compared_with, best) if variant in scores]
    met = sum(verdict.met is True for verdict in verdicts)
    return line(
        [
            task.title,
            f"{task.method} **{estimate([row.score for row in ours])}**, {count(len(ours), 'seed')}",
            *(_others({variant: runs[variant]}, task, len(ours)) for variant in named),
            *["-"] * (2 - len(named)),
            f"{met} of {len(verdicts)}" if verdicts else "-",
        ]
    )


def summary_row(suite: Suite, name: str, runs: Runs) -> str:
    """One task: the method, the other variants, and whether the targets are met."""
    task = suite.tasks[name]
    ours, verdicts = runs[task.method], judge(suite, name, runs)
    score = f"**{estimate([row.score for row in ours])}**"
    return line(
        [
            task.title,
            f"{task.method} {score}, {count(len(ours), 'seed')}",
            _others({key: each for key, each in runs.items() if each and key != task.method}, task, len(ours)),
            "; ".join(each.aim for each in verdicts) or "-",
            "; ".join(each.word for each in verdicts) or "-",
        ]
    )


def _others(runs: Runs, task: Task, seeds: int) -> str:
    """IQM of each other variant, with its seeds where they are fewer than ``seeds``.

    Of many only the one that is compared with, and the span of the rest, as the suite's page has them all.
    """
    scores = {variant: float(iqm([row.score for row in rows])) for variant, rows in runs.items()}
    named = list(scores) if len(scores) <= MAX_NAMED else [each for each in scores if each == task.compared_with]
    texts = []
    for variant in named:
        fewer = len(runs[variant]) < seeds and task.variants[variant].get("dataset") != "mean"
        texts.append(f"{variant} {number(scores[variant])}" + f" ({count(len(runs[variant]), 'seed')})" * fewer)
    rest = [score for variant, score in scores.items() if variant not in named]
    if rest:
        further = "further " if texts else ""
        texts.append(f"{len(rest)} {further}variants: {number(min(rest))} to {number(max(rest))}")
    return "; ".join(texts)


def index(results: Path, suites: Path) -> list[str]:
    """Lines for docs/results/README.md: the suites with their size."""
    lines = list(table_head(["suite", "runs", "hours", "targets met"]))
    for suite, rows in finished(results, suites):
        verdicts = [each for name in suite.tasks for each in judge(suite, name, runs_of(suite, name, rows))]
        states = [each.met for each in verdicts]
        met = [f"{states.count(met)} {word}" for met, word in WORDS.items() if met in states]
        hours = sum(row.wall_seconds for row in rows) / 3600
        planned = len(list(suite.cells()))
        cells = [f"[{suite.text.title}]({suite.name}.md)", f"{len(rows)} of {planned}", f"{hours:.1f}"]
        lines.append(line([*cells, ", ".join(met) or "-"]))
    return lines


def finished(results: Path, suites: Path) -> Iterator[tuple[Suite, list[Row]]]:
    """Suites that have rows, with those of today's configs."""
    for path in sorted(suites.glob("*.yaml")):
        if (results / f"{path.stem}.csv").is_file():
            suite = suite_of(path, path.read_text(encoding="utf-8"))
            if rows := rows_of(suite, results):
                yield suite, rows


@cache
def suite_of(path: Path, text: str) -> Suite:
    """The suite of a file with this text, read once: a suite of many configs takes a second."""
    return read_suite(str(path))


def each_seed(rows: Sequence[Row]) -> str:
    """The score of every run, in the order of their seeds; the seeds where they are not 0, 1, 2, ..."""
    scores = " / ".join(number(row.score) for row in rows)
    seeds = [row.seed for row in rows]
    named = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    return scores if seeds == list(range(len(seeds))) else f"{scores} ({named})"


def table_head(cells: Sequence[str]) -> list[str]:
    """Head of a Markdown table."""
    return [line(cells), "|" + "---|" * len(cells)]


def line(cells: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def folded(noun: str, table: Sequence[str]) -> list[str]:
    """A table, behind a line that opens it where it is long."""
    lines = len(table) - len(table_head([]))
    return list(table) if lines <= MAX_LINES else opening(f"All {lines} {noun}", table)


def opening(title: str, lines: Sequence[str]) -> list[str]:
    """Lines that show when the title is clicked."""
    return ['<details markdown="1">', f"<summary>{title}</summary>", "", *lines, "", "</details>"]


def _by_target(task: Task, runs: Runs) -> Iterator[str]:
    """Table of returns for every target return, IQM over runs, and how far the returns lie from the targets."""
    targets = pictures.targets_of(runs)
    if len(targets) < 2:
        return
    yield ""
    asked = [number(target) for target in targets]
    yield from table_head([f"{task.score} when asked for", *asked, "target error, RMSE"])
    for variant, rows in runs.items():
        if rows and len(rows[0].results) > 1:
            own = pictures.targets_of({variant: rows})
            scores = {target: [score_of(row.results, task.score, target) for row in rows] for target in own}
            cells = [estimate(scores.get(target, [])) for target in targets]
            yield line([variant, *cells, estimate([alignment_of(row) for row in rows])])


def _by_transfer(task: Task, runs: Runs) -> Iterator[str]:
    """Table of the last weights in other environments, IQM over runs, and what a step takes there."""
    played = {variant: rows for variant, rows in runs.items() if rows and rows[0].transfers}
    if not played:
        return
    yield ""
    eager = ", ".join(name for name, each in task.transfers.items() if each.acting == "eager")
    unit = f"µs per step ({eager}: not compiled)" if eager else "µs per step"
    table = table_head([f"{task.score} where it was never trained", *task.transfers, unit])
    for variant, rows in played.items():
        cells = [estimate([row.score_in(name, task.score) for row in rows]) for name in task.transfers]
        times = [median(row.transfers[name]["microseconds"] for row in rows) for name in task.transfers]
        table.append(line([variant, *cells, " / ".join(map(number, times))]))
    yield from folded("variants where they were never trained", table)


def _recordings(runs: Runs) -> Iterator[str]:
    """Which runs learned from which recording of the dataset, where there are several."""
    readers: dict[str, list[str]] = {}
    for variant, rows in runs.items():
        for recording in dict.fromkeys(row.recording for row in rows):
            seeds = ", ".join(str(row.seed) for row in rows if row.recording == recording)
            readers.setdefault(recording, []).append(f"{variant} ({seeds})")
    if len(readers) > 1:
        yield ""
        yield "These runs learned from several recordings of the dataset:"
        yield ""
        yield from table_head(["recording", "variants (seeds)"])
        yield from (line([recording or "not noted", "; ".join(names)]) for recording, names in readers.items())


def alignment_of(row: Row) -> float:
    """Root mean square over targets and episodes of asked minus obtained return (``return_alignment``)."""
    squares = []
    for each in row.results:
        mean, std, asked = each["return_mean"], each["return_std"], each["target_return"]
        if asked is not None and mean is not None and std is not None:
            squares.append(std**2 + (mean - asked) ** 2)
    return float(np.sqrt(np.mean(squares)))


def _origin(rows: Sequence[Row]) -> Iterator[tuple[str, list[str]]]:
    """Software and machines of the runs."""
    if commits := [row.commit for row in rows if row.commit]:  # none of an installed package
        yield "commit", commits
    yield "machine", [row.machine for row in rows]
    yield "versions", [" ".join(f"{name} {version}" for name, version in row.versions.items()) for row in rows]
    yield "date", sorted(row.date for row in rows)


def _improvement(rows: Sequence[Row], others: Sequence[Row], same: bool) -> str:
    if same or not rows or not others:
        return "-"
    return f"{probability_of_improvement([[r.score for r in rows]], [[r.score for r in others]]):.2f}"
