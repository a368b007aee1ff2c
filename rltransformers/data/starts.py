"""How much of the returns was decided before the first action. Axis letters: E episodes, D features of a start."""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rltransformers.core.spaces import Space, leaf_spaces
from rltransformers.core.values import Array

if TYPE_CHECKING:
    from rltransformers.data.trajectories import Trajectories

Floats = npt.NDArray[np.float64]
FOLDS, NEIGHBORS, RIDGE = 5, 10, 1.0
FEWEST, MOST = 20, 2000
"""Episodes without which nothing can be told, and which are drawn from more."""
MOST_FEATURES = 256
"""Of one leaf; a larger one is projected at random, which keeps distances (Johnson and Lindenstrauss 1984)."""


def share_of_start(data: "Trajectories") -> dict[str, Any] | None:
    """Share of the variance of returns that the first observation explains in episodes that were held out.

    The better one of a linear regression (ridge) and of the mean of the nearest neighbors, at least 0; None for fewer
    than 20 episodes or equal returns. Of more than 2,000 episodes that many are drawn.
    """
    generator = np.random.default_rng(0)
    episodes = generator.permutation(len(data))[:MOST]
    returns = data.returns[episodes]
    if len(data) < FEWEST or np.ptp(returns) == 0:
        return None
    rows, places = np.unique(data.offsets[episodes] + episodes, return_inverse=True)
    parts = [
        _features(leaf, np.asarray(data.observations[path][rows])[places], generator)
        for path, leaf in leaf_spaces(data.observation_space).items()
    ]
    features = np.concatenate(parts, axis=1)
    errors = {"linear regression": 0.0, "nearest neighbors": 0.0}
    spread = 0.0
    for fold in range(FOLDS):
        held = np.arange(len(returns)) % FOLDS == fold
        known, mean = returns[~held], returns[~held].mean()
        spread += float(((returns[held] - mean) ** 2).sum())
        for method, predict in (("linear regression", _regression), ("nearest neighbors", _neighbors)):
            predicted = mean + predict(features[~held], known - mean, features[held])
            errors[method] += float(((returns[held] - predicted) ** 2).sum())
    method = min(errors, key=lambda key: errors[key])
    share = max(0.0, 1.0 - errors[method] / spread)
    return {"share": share, "method": method, "folds": FOLDS, "episodes": len(episodes)}


def _features(space: Space, rows: Array, generator: np.random.Generator) -> Floats:
    """Features [E, D] of the rows of a leaf, whose variances sum to 1, so that pictures do not outweigh numbers."""
    columns = _columns(space, rows, generator)
    deviation = columns.std(0)
    varied = deviation > 0
    return np.asarray((columns - columns.mean(0))[:, varied] / (deviation[varied] * np.sqrt(max(varied.sum(), 1))))


def _columns(space: Space, rows: Array, generator: np.random.Generator) -> Floats:
    """Rows of a leaf as [E, D]; classes are one-hot where they are few."""
    flat = np.reshape(rows, (len(rows), -1))
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        columns = [np.unique(column, return_inverse=True) for column in flat.T]
        if sum(len(classes) for classes, _ in columns) <= MOST_FEATURES:
            return np.concatenate([np.eye(len(classes))[index] for classes, index in columns], axis=1)
    if flat.shape[1] > MOST_FEATURES:
        projection = generator.standard_normal((flat.shape[1], MOST_FEATURES), np.float32)
        flat = (flat - flat.mean(0, dtype=np.float64)).astype(np.float32) @ projection
    return np.asarray(flat, np.float64)


def _regression(known: Floats, values: Floats, asked: Floats) -> Floats:
    gram = known.T @ known + RIDGE * np.eye(known.shape[1])
    return np.asarray(asked @ np.linalg.solve(gram, known.T @ values))


def _neighbors(known: Floats, values: Floats, asked: Floats) -> Floats:
    distances = (asked**2).sum(1)[:, None] + (known**2).sum(1) - 2 * asked @ known.T
    nearest = np.argpartition(distances, min(NEIGHBORS, len(known)) - 1, axis=1)[:, :NEIGHBORS]
    return np.asarray(values[nearest].mean(1))
