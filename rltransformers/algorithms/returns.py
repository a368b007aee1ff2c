"""Returns of n steps on recorded segments. Axes: B segments, T steps, L = T - n of them."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def n_step_returns(
    rewards: Float[Tensor, "B T"],
    discounts: Float[Tensor, "B T"],
    values: Float[Tensor, "B T"],
    stops: Bool[Tensor, "B T"],
    n_step: int,
) -> Float[Tensor, "B L"]:
    """r_t + d_t r_{t+1} + ... + d_t ... d_{t+n-1} V_{t+n} for the first L = T - n rows; earlier V where a row stops.

    ``discounts`` are 0 for an action that ended its episode.
    """
    returns = values
    for _ in range(n_step):
        count = returns.shape[1] - 1
        further = rewards[:, :count] + discounts[:, :count] * returns[:, 1:]
        returns = torch.where(stops[:, :count], values[:, :count], further)
    return returns
