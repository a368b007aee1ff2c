"""Whether the runs of a task reach what it aims at: each aim as text, what they got, and yes, no or open."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from scipy.stats import spearmanr

from rltransformers.core.described import number
from rltransformers.functional.statistics import iqm, iqm_interval
from rltransformers.zoo.suites import Aim, Suite, Task
from rltransformers.zoo.table import Row, score_of

Runs = Mapping[str, Sequence[Row]]
"""Rows of a task by variant, every variant present."""

WORDS = {True: "yes", False: "no", None: "open"}
"""Words for an aim that is met, is not, or waits for runs."""


@dataclass(frozen=True)
class Verdict:
    """An aim, what the runs got, and whether it is met; None as long as runs are missing."""

    aim: str
    got: str
    met: bool | None

    @property
    def word(self) -> str:
        """For a table."""
        return f"**{WORDS[self.met]}**" if self.met is False else WORDS[self.met]


def judge(suite: Suite, name: str, runs: Runs) -> list[Verdict]:
    """One verdict per aim of the task ``name``."""
    task = suite.tasks[name]
    planned = {variant: len(suite.variant_seeds(name, variant)) for variant in task.variants}
    return [verdict(task, aim, runs, planned) for aim in task.aims]


def verdict(task: Task, aim: Aim, runs: Runs, planned: Mapping[str, int]) -> Verdict:
    """Judge one aim; ``planned`` says how many runs each variant is to have."""
    variant = aim.variant or task.method
    words, rows = text(task, aim, planned[variant]), runs[variant]
    missing = max(planned[variant] - len(rows), 0)
    if not rows:
        return Verdict(words, "", None)
    if aim.score == "rising":
        means = [
            float(iqm([score_of(row.results, task.score, target) for row in rows])) for target in _targets(aim, rows)
        ]
        met = all(_below(low, high) for low, high in pairwise(means))
        return Verdict(words, ", ".join(number(mean) for mean in means), None if missing else met)
    scores = [_score(task, aim, row) for row in rows]
    if aim.seeds is not None:
        good = sum(_within(aim, score) for score in scores)
        open_ = good < aim.seeds <= good + missing
        return Verdict(words, f"{good} of {len(scores)}", None if open_ else good >= aim.seeds)
    if aim.above is not None or aim.over is not None:
        other = aim.above or aim.over
        assert other is not None
        missing += max(planned[other] - len(runs[other]), 0)
        if not runs[other]:
            return Verdict(words, "", None)
        return _compared(words, aim, scores, [_score(task, aim, row) for row in runs[other]], bool(missing))
    got = float(iqm(scores))
    return Verdict(words, number(got), None if missing else _within(aim, got))


def _compared(words: str, aim: Aim, scores: Sequence[float], others: Sequence[float], missing: bool) -> Verdict:
    if aim.over is not None:
        got, met = _ratio(aim, float(iqm(scores)), float(iqm(others)))
    elif min(len(scores), len(others)) == 1:
        got, met = "a single run has no interval", False
    else:
        (low, _), (_, high) = iqm_interval(scores), iqm_interval(others)
        met = _below(high, low)
        got = f"{number(low)} {'>' if met else '≤'} {number(high)}"
    return Verdict(words, got, None if missing else met)


def _ratio(aim: Aim, ours: float, theirs: float) -> tuple[str, bool]:
    """The ratio of two scores in words, and whether it is within the bound: not where there is none, as of 0 to 0."""
    ratio = math.nan if min(ours, theirs) < 0 else ours / theirs if theirs else ours * math.inf
    got = f"no ratio of {number(ours)} to {number(theirs)}" if math.isnan(ratio) else f"{number(ratio)} ×"
    return got, _within(aim, ratio)


def text(task: Task, aim: Aim, planned: int) -> str:
    """An aim in words."""
    who = f"{aim.variant}: " if aim.variant not in (None, task.method) else ""
    if aim.target is not None:
        who += f"asked {number(aim.target)}: "
    if aim.transfer is not None:
        who += f"{aim.transfer}: "
    if aim.above is not None:
        return f"{who}above {aim.above}, intervals apart"
    if aim.score == "rising":
        ends = f" from {number(min(aim.targets))} to {number(max(aim.targets))}" if aim.targets else ""
        return f"{who}{task.score} rises with every target{ends}"
    bound = f"≥ {number(aim.least)}" if aim.least is not None else f"≤ {number(aim.most or 0.0)}"
    if aim.over is not None:
        return f"{who}{bound} × {aim.over}"
    if aim.score == "spearman":
        bound = f"Spearman(target, {task.score}) {bound}"
    return f"{who}{bound}" + (f" in {aim.seeds} of {planned} seeds" if aim.seeds is not None else "")


def _within(aim: Aim, value: float) -> bool:
    """Whether a value keeps the bound; one that is no number does not."""
    low, high = (aim.least, value) if aim.least is not None else (value, aim.most)
    assert low is not None and high is not None  # an aim with a bound has one of the two
    return low <= high or math.isclose(low, high, rel_tol=1e-9)


def _below(one: float, other: float) -> bool:
    """Whether ``one`` is smaller by more than rounding: the mean of three times 0.95 is a little less than 0.95."""
    return one < other and not math.isclose(one, other, rel_tol=1e-9)


def _score(task: Task, aim: Aim, row: Row) -> float:
    if aim.score == "spearman":
        targets = _targets(aim, [row])
        achieved = [score_of(row.results, task.score, target) for target in targets]
        # A run that returns the same whatever it is asked has no rank correlation; it does not follow its targets.
        return 0.0 if len(set(achieved)) == 1 else float(spearmanr(targets, achieved).statistic)
    if aim.target is not None:
        return score_of(row.results, task.score, aim.target)
    if aim.transfer is not None:
        return score_of([row.transfers[aim.transfer]], task.score)
    return row.score


def _targets(aim: Aim, rows: Sequence[Row]) -> list[float]:
    found = sorted({each["target_return"] for row in rows for each in row.results if each["target_return"] is not None})
    return sorted(aim.targets) or found
