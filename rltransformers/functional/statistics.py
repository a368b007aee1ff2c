"""Statistics of scores over runs: interquartile mean, stratified bootstrap intervals, probability of improvement.

All three as in Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (arXiv
2108.13264, section 4). A stratum is what is resampled within: the runs of one task, or the episodes of one evaluation.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Statistic = Callable[..., Any]


def iqm(scores: ArrayLike, axis: int | None = None) -> Any:
    """Interquartile mean: the mean of the middle half of ``scores``; over all of them when ``axis`` is None.

    As in rliable, floor(n / 4) scores are cut at each end, so fewer than four scores give their plain mean. NaN, which
    is neither high nor low, makes the mean NaN.
    """
    # As scipy.stats.trim_mean, whose import takes a second of every run that is evaluated.
    values = np.asarray(scores, dtype=np.float64)
    values = np.moveaxis(values.reshape(-1) if axis is None else values, -1 if axis is None else axis, -1)
    if not values.size:
        return np.nan
    cut = values.shape[-1] // 4
    end = values.shape[-1] - cut
    means = np.mean(np.partition(values, (cut, end - 1), axis=-1)[..., cut:end], axis=-1)
    return np.where(np.isnan(values).any(-1), np.nan, means)


def stratified_bootstrap(
    strata: Sequence[ArrayLike],
    generator: np.random.Generator,
    statistic: Statistic = iqm,
    confidence: float = 0.95,
    samples: int = 2000,
) -> tuple[float, float]:
    """Percentile bootstrap interval of ``statistic`` over the pooled scores, resampled within each stratum.

    ``strata`` are one-dimensional and may differ in length. ``statistic`` takes ``[samples, n]`` and ``axis=-1``, as
    ``iqm``, ``numpy.mean`` and ``numpy.median`` do.

    Raises:
        ValueError: for no strata or an empty one.
    """
    arrays = [_scores(stratum) for stratum in strata]
    if not arrays:
        raise ValueError("a bootstrap interval needs at least one stratum of scores")
    resampled = [scores[generator.integers(len(scores), size=(samples, len(scores)))] for scores in arrays]
    values = statistic(np.concatenate(resampled, axis=1), axis=-1)
    tail = 50 * (1 - confidence)
    low, high = np.percentile(values, [tail, 100 - tail])
    return float(low), float(high)


def iqm_interval(scores: ArrayLike) -> tuple[float, float]:
    """95 % bootstrap interval of the IQM of scores [n]; the same at every call."""
    return stratified_bootstrap([scores], np.random.default_rng(0))


def probability_of_improvement(scores_x: Sequence[ArrayLike], scores_y: Sequence[ArrayLike]) -> float:
    """Probability that a run of X beats a run of Y on a task drawn at random; ties count one half.

    One stratum per task, in the same order for both; the Mann-Whitney statistic divided by the number of pairs,
    averaged over tasks.

    Raises:
        ValueError: when the numbers of tasks differ or a task has no scores.
    """
    if len(scores_x) != len(scores_y) or not scores_x:
        raise ValueError(f"the same tasks are needed for both sides, got {len(scores_x)} and {len(scores_y)}")
    differences = (np.subtract.outer(_scores(x), _scores(y)) for x, y in zip(scores_x, scores_y, strict=True))
    return float(np.mean([np.mean((each > 0) + 0.5 * (each == 0)) for each in differences]))


def _scores(stratum: ArrayLike) -> NDArray[np.float64]:
    scores = np.asarray(stratum, dtype=np.float64)
    if scores.ndim != 1 or not len(scores):
        raise ValueError(f"a stratum is a non-empty list of scores, got shape {scores.shape}")
    return scores
