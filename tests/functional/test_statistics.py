"""Interquartile mean, bootstrap intervals and probability of improvement against hand numbers and known theory."""

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, trim_mean

from rltransformers.functional.statistics import iqm, probability_of_improvement, stratified_bootstrap


def test_the_interquartile_mean_drops_a_quarter_at_each_end() -> None:
    assert iqm([100.0, 1.0, 2.0, 3.0, 4.0, -50.0, 5.0, 6.0]) == (2 + 3 + 4 + 5) / 4
    assert iqm([1.0, 2.0, 9.0]) == 4.0
    np.testing.assert_array_equal(iqm([[0.0, 1.0, 2.0, 9.0], [3.0, 1.0, 1.0, 0.0]], axis=-1), [1.5, 1.0])
    assert np.isnan(iqm([0.5, 0.6, 0.7, np.nan, 0.9])), "what is no number is no high score to cut"
    np.testing.assert_array_equal(iqm([[0.0, 1.0, 2.0, np.nan], [3.0, 1.0, 1.0, 0.0]], axis=-1), [np.nan, 1.0])


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_the_interquartile_mean_is_the_trimmed_mean_of_scipy_bit_for_bit(axis: int | None) -> None:
    generator = np.random.default_rng(0)
    for rows, columns in [(1, 3), (2, 4), (7, 5), (30, 11), (300, 10)]:
        scores = generator.normal(size=(rows, columns)).round(1)  # with ties
        np.testing.assert_array_equal(iqm(scores, axis=axis), trim_mean(scores, 0.25, axis=axis))


def test_the_interval_covers_the_true_mean_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    trials, n = 200, 40
    covered, widths = 0, []
    for _ in range(trials):
        scores = generator.normal(size=n)
        low, high = stratified_bootstrap([scores], generator, np.mean, confidence=0.9, samples=300)
        covered += low <= 0 <= high
        widths.append((high - low) / (2 * 1.645 * scores.std() / np.sqrt(n)))
    # 0.9 with a binomial deviation of 0.021 over 200 trials; the percentile bootstrap is some points short at n = 40.
    assert 0.82 <= covered / trials <= 0.96
    # The normal theory's width; quantiles of 300 resamples are off by some percent, their mean over 200 trials less.
    assert np.mean(widths) == pytest.approx(1, abs=0.04)


def test_resampling_stays_within_its_stratum() -> None:
    generator = np.random.default_rng(0)
    assert stratified_bootstrap([[0.0] * 5, [10.0] * 3], generator, np.mean) == (3.75, 3.75)
    low, high = stratified_bootstrap([[0.0] * 5 + [10.0] * 3], generator, np.mean)
    assert low < 3.75 < high


def test_the_same_generator_seed_gives_the_same_interval() -> None:
    scores = [np.random.default_rng(1).normal(size=30)]
    first = stratified_bootstrap(scores, np.random.default_rng(2))
    assert first == stratified_bootstrap(scores, np.random.default_rng(2))
    assert first != stratified_bootstrap(scores, np.random.default_rng(3))


def test_probability_of_improvement_is_the_mann_whitney_statistic_over_pairs() -> None:
    assert probability_of_improvement([[3.0, 1.0]], [[2.0, 1.0, 0.0]]) == (3 + 1.5) / 6
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 5, 11), generator.integers(0, 5, 7)
    expected = mannwhitneyu(x, y).statistic / (len(x) * len(y))
    assert probability_of_improvement([x, y], [y, y]) == pytest.approx((expected + 0.5) / 2)


def test_empty_strata_are_refused() -> None:
    with pytest.raises(ValueError, match="non-empty"):
        stratified_bootstrap([[1.0], []], np.random.default_rng(0))
    with pytest.raises(ValueError, match="at least one"):
        stratified_bootstrap([], np.random.default_rng(0))
    with pytest.raises(ValueError, match="same tasks"):
        probability_of_improvement([[1.0]], [])
