"""Thresholds that keep a risk below a bound with high probability (Angelopoulos et al. 2021, Schuster et al. 2022)."""

import math
from collections.abc import Callable, Iterable

from jaxtyping import Float
from torch import Tensor


def hoeffding(mean: float, bound: float, count: int) -> float:
    """p-value of "the expected loss exceeds ``bound``" after ``count`` independent losses in [0, 1] of this mean."""
    return math.exp(-2 * count * max(0.0, bound - mean) ** 2)


def learn_then_test(
    thresholds: Iterable[float], losses: Callable[[float], Float[Tensor, " n"]], bound: float, error: float
) -> float | None:
    """The last of ``thresholds`` up to which every one was found safe; None if the first one was not.

    With probability at least 1 - ``error`` over the samples, the expected loss at the threshold is at most ``bound``
    (fixed-sequence testing: thresholds in an order that does not depend on the samples, the safest first). ``losses``
    are those of independent samples under a threshold, each in [0, 1].
    """
    safe = None
    for threshold in thresholds:
        found = losses(threshold)
        if hoeffding(float(found.double().mean()), bound, len(found)) > error:
            break
        safe = threshold
    return safe
