"""How much better a recorded step went on than usual: values as distributions, and advantages in bins.

Values are categorical, learned from returns by cross-entropy, as in RECAP of pi*0.6 (2025, arXiv 2511.14759, section
IV), there over 201 bins; advantages are those of Schulman et al. 2016 (GAE, arXiv 1506.02438), as in ACT (Gao et al.
2024, arXiv 2309.05915). N steps and E episodes of the data, M atoms of a distribution, "..." any axes.
"""

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from rltransformers.data.trajectories import discounted_sums

Floats = NDArray[np.float64]


def value_losses(logits: Float[Tensor, "... M"], targets: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Cross-entropy of distributions over M atoms from 0 to 1 with targets in [0, 1], shared by the two nearest atoms.

    The mean of the best distribution is the mean of the targets (two-hot: MuZero, arXiv 1911.08265, appendix F).
    """
    place = targets.clamp(0.0, 1.0) * (logits.shape[-1] - 1)
    below = place.floor().clamp(max=logits.shape[-1] - 2)
    share = place - below
    index = torch.stack([below, below + 1], -1).long()
    one, other = logits.log_softmax(-1).gather(-1, index).unbind(-1)
    return -((1.0 - share) * one + share * other)


def mean_values(logits: Float[Tensor, "... M"]) -> Float[Tensor, "..."]:
    """Means, in [0, 1], of distributions over M atoms from 0 to 1."""
    atoms = torch.linspace(0.0, 1.0, logits.shape[-1], dtype=logits.dtype, device=logits.device)
    return logits.softmax(-1) @ atoms


def advantages(rewards: Floats, values: Floats, offsets: NDArray[np.int64], discount: float, lam: float) -> Floats:
    """Generalized advantage estimates [N] of whole episodes; nothing is worth anything behind their last steps.

    With ``lam`` 1 they are the return-to-go minus the value, with 0 reward and next value minus the value.

    Args:
        rewards, values: of every step and of the history before it [N].
        offsets: episode e holds the steps offsets[e] .. offsets[e + 1] - 1 [E + 1].
    """
    following = np.append(values[1:], 0.0)
    following[offsets[1:] - 1] = 0.0
    return np.asarray(discounted_sums(rewards + discount * following - values, offsets, discount * lam))


def bin_edges(values: Floats, bins: int) -> Floats:
    """Edges [bins - 1] between bins that hold equally many values, but for values that are equal."""
    return np.quantile(values, np.arange(1, bins) / bins)


def bins_of(values: Floats, edges: Floats) -> NDArray[np.float32]:
    """Bin of every value; one that lies on an edge belongs to the better bin, so where all are equal to the best."""
    return np.searchsorted(edges, values, side="right").astype(np.float32)
