"""What a Decision Transformer is asked for: which returns it may be, and how returns and advantages are read.

N environments, W model width, "..." any axes.
"""

from collections.abc import Iterable, Mapping, Set
from numbers import Real
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.errors import ConfigError, DataError
from rltransformers.core.ranges import fits, shown
from rltransformers.core.values import finite
from rltransformers.policies.observations import fit_vector

MAX_SCALED = 1e6  # largest return-to-go that the network may read; it is made for numbers of order 1
ReturnIn = Literal["sequence", "condition"]
"""Whether returns are tokens of the sequence, or only the newest one conditions what the sequence was made into."""


class BinEmbedding(nn.Embedding):
    """A learned vector for every bin of advantages, in the place of ``nn.Linear(1, width)`` for returns."""

    def forward(self, bins: Float[Tensor, "... 1"]) -> Float[Tensor, "... W"]:
        return super().forward(bins.squeeze(-1).long())


def return_embedding(width: int, advantage_bins: int | None) -> nn.Module:
    """What makes a vector of a number [..., 1]: a return in network units, or the number of a bin."""
    return nn.Linear(1, width) if advantage_bins is None else BinEmbedding(advantage_bins, width)


class ReturnCondition(nn.Module):
    """Features that depend on one return: a feed-forward block behind a LayerNorm whose scale and shift it decides.

    Adaptive LayerNorm as in DiT (Peebles & Xie 2022, arXiv 2212.09748, section 3.2). What is conditioned is the output
    of the sequence, so that the sequence, and what acting remembers of it, does not depend on any return.
    """

    def __init__(self, width: int, advantage_bins: int | None = None) -> None:
        super().__init__()
        self.embed = return_embedding(width, advantage_bins)
        self.modulate = nn.Linear(width, 2 * width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, features: Float[Tensor, "... W"], scaled: Float[Tensor, "..."]) -> Float[Tensor, "... W"]:
        asked = F.silu(self.embed(scaled.unsqueeze(-1)))
        scale, shift = self.modulate(asked).chunk(2, -1)
        normal = torch.layer_norm(features, features.shape[-1:])
        return features + self.contract(F.gelu(self.expand(normal * (1.0 + scale) + shift)))


def target_list(target_returns: Iterable[float] | float | None, best: float | None, return_scale: float) -> list[Any]:
    """The targets of an evaluation in reward units, ``best`` for None; [None] where a policy has none.

    Raises:
        ConfigError: for what is no finite number, and for targets of a policy that has no ``best``.
    """
    if best is None:
        if target_returns is not None:
            raise ConfigError("this policy has no target return; call evaluate without target_returns")
        return [None]
    if target_returns is None:
        return [best]
    if isinstance(target_returns, Mapping | Set | str | bytes):
        raise ConfigError(
            f"target_returns is a number or a list of numbers, got {shown(target_returns)}; write [100.0]"
        )
    if isinstance(target_returns, np.ndarray):
        target_returns = target_returns.tolist()
    values = target_returns if isinstance(target_returns, Iterable) else [target_returns]
    targets: list[Any] = [value.item() if isinstance(value, np.generic) else value for value in values]
    for target in targets:
        if not isinstance(target, Real) or isinstance(target, bool | np.bool_) or not fits(target, float):
            raise ConfigError(f"target_returns holds {shown(target)}, which is not a finite number; pass e.g. [100.0]")
        check_readable(np.array([target], np.float64), return_scale, "target_returns", target)
    if not targets:
        raise ConfigError("target_returns is empty; pass at least one number, or None for the best of the dataset")
    return [float(target) for target in targets]


def finite_targets(value: Any, rows: int, return_scale: float, name: str = "target_return") -> np.ndarray:
    """Target returns [N] in float64 that the network can read; ConfigError for anything else."""
    try:
        targets = fit_vector(value, rows, name)
    except DataError as error:
        raise ConfigError(str(error)) from error
    if np.asarray(value).dtype == bool:
        raise ConfigError(f"{name} must be a finite number, got {shown(value)}; pass e.g. 100.0")
    check_readable(targets, return_scale, name, value)
    return targets


def check_readable(targets: np.ndarray, return_scale: float, name: str, value: Any) -> None:
    """Raise ConfigError unless the network can read all targets, of the argument ``name`` with this ``value``."""
    if not finite(targets).all():
        raise ConfigError(f"{name} must be finite numbers, got {shown(value)}; pass e.g. 100.0")
    largest = MAX_SCALED * return_scale
    if (np.abs(targets) > largest).any():
        raise ConfigError(
            f"{name} must be at most {largest:g} in size, got {shown(value)}: the network reads returns in units of "
            f"{return_scale:g} and is made for numbers of order 1; pass one near the returns of the data"
        )
