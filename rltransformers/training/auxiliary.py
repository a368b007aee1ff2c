"""Auxiliary losses of networks of which several processes evaluate a part of one batch each."""

from collections.abc import Mapping

import torch
from torch import Tensor

from rltransformers.core.record import Means
from rltransformers.core.world import Sharing


def losses_of_all(means: Mapping[str, list[Means]], tokens: int | Tensor, sharing: Sharing) -> dict[str, Tensor]:
    """Losses of a whole batch by name, from the means of this process, which evaluated so many ``tokens`` of it.

    Every mean counts by its own number of entries: some are not over all tokens. Gradient as for ``Sharing.sum``.
    """
    if not means:
        return {}
    parts = [part for each in means.values() for part in each]
    values = torch.cat([part.values.flatten() for part in parts])
    numbers = torch.cat([_numbers(part, tokens).flatten() for part in parts])
    sizes = [sum(part.values.numel() for part in each) for each in means.values()]
    whole = sharing.mean_of_means(values, numbers).split(sizes)  # all losses in one message
    return {name: each.sum() for name, each in zip(means, whole, strict=True)}


def _numbers(part: Means, tokens: int | Tensor) -> Tensor:
    """Of how many entries each of these means is."""
    number = tokens if part.numbers is None else part.numbers
    return torch.as_tensor(number, dtype=torch.float64, device=part.values.device).expand_as(part.values)
