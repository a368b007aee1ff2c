"""The three pictures of a run: learning curve, return against target return, attention look-back per head."""

import io
import os
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator
from numpy.typing import ArrayLike

from rltransformers.core.described import exact
from rltransformers.core.errors import ConfigError
from rltransformers.core.files import naming, replacing
from rltransformers.functional.statistics import stratified_bootstrap
from rltransformers.training.evaluation import EvaluationResult, return_alignment
from rltransformers.training.runs.curves import canvas, save_figure

Path = str | os.PathLike[str]


def plot_learning_curve(
    path: Path, evaluations: Sequence[tuple[int, Sequence[EvaluationResult]]], title: str, steps: str
) -> None:
    """Mean evaluation return against training steps, with the 95 % bootstrap interval of the mean over episodes.

    A run with several target returns gets one line per target; ``steps`` names the x-axis.
    """
    figure, axes = canvas(title)
    for target in dict.fromkeys(result.target_return for _, results in evaluations for result in results):
        points = [
            (step, result) for step, results in evaluations for result in results if result.target_return == target
        ]
        x = np.array([step for step, _ in points])
        means = np.array([np.mean(result.returns) for _, result in points])
        intervals = np.array([_mean_interval(result.returns) for _, result in points])
        kind = "target" if points[0][1].discounted_returns is None else "discounted target"
        label = "mean return" if target is None else f"{kind} {exact(target)}"
        (line,) = axes.plot(x, means, marker="o", markersize=3.5, label=label)
        axes.fill_between(x, intervals[:, 0], intervals[:, 1], color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set_xlabel(steps)
    axes.set_ylabel("return per evaluation episode")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if len(axes.lines) > 1:
        axes.legend(frameon=False)
    _write(figure, path)


def plot_validation_curve(path: Path, losses: Sequence[tuple[int, float]], title: str, steps: str) -> None:
    """Action loss on held-out episodes against training steps; the lowest is marked."""
    figure, axes = canvas(title)
    axes.plot(*zip(*losses, strict=True), marker="o", markersize=3.5, label="held-out episodes")
    step, loss = min(losses, key=lambda point: point[1])
    axes.plot([step], [loss], marker="o", color="C1", linestyle="", label=f"lowest, {loss:.4g}")
    axes.set_xlabel(steps)
    axes.set_ylabel("action loss")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.legend(frameon=False)
    _write(figure, path)


def plot_return_versus_target(
    path: Path, results: Sequence[EvaluationResult], title: str, without_data: Sequence[Sequence[float]] = ()
) -> None:
    """Achieved against commanded return of a Decision Transformer: mean, 95 % interval, episodes, and the diagonal.

    Target returns in the ranges ``without_data`` (lowest, highest) are shaded: no episode of the data is near. The
    legend says how far target and return lie apart; raises ConfigError when no result has a target return.
    """
    aimed = sorted((r for r in results if r.target_return is not None), key=lambda r: float(r.target_return or 0.0))
    if not aimed:
        raise ConfigError("no evaluation has a target return; evaluate with --target-return R, several times")
    figure, axes = canvas(title)
    targets = np.array([result.target_return for result in aimed], dtype=np.float64)
    means = np.array([np.mean(result.obtained) for result in aimed])
    intervals = np.array([_mean_interval(result.obtained) for result in aimed])
    low, high = min(targets.min(), means.min()), max(targets.max(), means.max())
    axes.plot(
        [low, high],
        [low, high],
        color="0.6",
        linestyle="--",
        linewidth=1,
        label=f"return = target (RMSE {return_alignment(aimed):.4g})",
    )
    for target, result in zip(targets, aimed, strict=True):
        axes.scatter(np.full(len(result.obtained), target), result.obtained, s=8, color="C0", alpha=0.25, linewidths=0)
    errors = np.abs(intervals - means[:, None]).T
    axes.errorbar(targets, means, yerr=errors, color="C0", marker="o", capsize=3, label="mean, 95 % interval")
    left, right = axes.get_xlim()
    shown = [(max(low, left), min(high, right)) for low, high in without_data if low < right and high > left]
    for index, (low, high) in enumerate(shown):
        axes.axvspan(low, high, color="0.88", linewidth=0, zorder=0, label=None if index else "no data near")
    axes.set_xlim(left, right)
    axes.set_xlabel("target return")
    axes.set_ylabel("return" if aimed[0].discounted_returns is None else "discounted return")
    axes.legend(frameon=bool(shown), framealpha=1.0, edgecolor="none")  # readable on what is shaded
    _write(figure, path)


def plot_lookback(path: Path, attention: Mapping[str, ArrayLike], title: str) -> None:
    """How far back every head looks: ``attention`` holds mean weights [heads, look-back] by layer ("layer0").

    Column d is for d tokens ago, and the name of a head says how many that is on average. Raises ConfigError when there
    is no layer, or one of another shape.
    """
    layers = [np.asarray(layer, dtype=np.float64) for layer in attention.values()]
    shapes = [layer.shape for layer in layers]
    if not layers or any(len(shape) != 2 or not all(shape) or shape[1] != shapes[0][-1] for shape in shapes):
        raise ConfigError(f"a look-back picture needs an array [heads, look-back] of every layer, got shapes {shapes}")
    weights = np.concatenate(layers)
    rows, lookback = weights.shape
    figure, axes = canvas(title, height=1.4 + 0.3 * rows)
    # A square root keeps the small weights visible that a long memory spreads over hundreds of tokens.
    image = axes.imshow(
        np.sqrt(weights), aspect="auto", origin="lower", cmap="viridis", vmin=0.0, interpolation="nearest"
    )
    means = iter(weights @ np.arange(lookback) / weights.sum(1).clip(min=1e-12))
    names = [
        f"{name.replace('layer', 'layer ')}, head {head}: {next(means):.1f} ago"
        for name, layer in zip(attention, layers, strict=True)
        for head in range(len(layer))
    ]
    axes.set_yticks(range(rows), names, fontsize=8)
    axes.hlines(
        np.cumsum([len(layer) for layer in layers])[:-1] - 0.5, -0.5, lookback - 0.5, color="1.0", linewidth=1.5
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(lookback - 0.5, -0.5)
    axes.set_xlabel("tokens ago")
    axes.grid(False)
    bar = figure.colorbar(image, ax=axes, label="attention weight")
    bar.ax.yaxis.set_major_formatter(lambda root, _: f"{root**2:.2g}")
    _write(figure, path)


def check_picture(path: Path) -> None:
    """Raise ConfigError or OSError unless a picture can be drawn and written to ``path``; leave it alone."""
    if os.path.isdir(path):
        raise ConfigError(f"{os.fspath(path)} is a folder, and a picture is to be written there: move it away")
    canvas("")[0].savefig(io.BytesIO(), format="png")
    with naming(path), tempfile.TemporaryFile(dir=os.path.dirname(path)):
        pass


def _write(figure: Figure, path: Path) -> None:
    with replacing(path) as temporary:
        save_figure(figure, temporary)


@lru_cache(maxsize=10_000)  # the curve of a run is drawn anew behind every evaluation
def _mean_interval(returns: tuple[float, ...]) -> tuple[float, float]:
    """95 % percentile bootstrap of the mean over episodes."""
    return stratified_bootstrap([returns], np.random.default_rng(0), np.mean)
