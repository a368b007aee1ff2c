"""Advantages of recorded steps. Axes: B streams (environments), T time."""

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor


def generalized_advantage(
    rewards: Float[Tensor, "B T"],
    values: Float[Tensor, "B T"],
    next_values: Float[Tensor, "B T"],
    episode_ends: Bool[Tensor, "B T"],
    discount: float,
    trace: float,
) -> Float[Tensor, "B T"]:
    """Generalized advantage estimates (arXiv 1506.02438, eq. 16), accumulated backwards and cut at episode ends.

    Args:
        rewards: r_t, received for the action taken at t.
        values: V(s_t).
        next_values: V of the state that followed the action: 0 after a termination, V of the true last observation
            after a truncation, V(s_{t+1}) otherwise. The caller knows which; nothing is guessed from ``episode_ends``.
        episode_ends: True where step t was the last of its episode, however it ended.
        discount: gamma in [0, 1].
        trace: lambda in [0, 1].
    """
    errors = rewards + discount * next_values - values
    carry = discount * trace * (~episode_ends).to(errors.dtype)
    # In numpy an operation on a few numbers costs a third of what it costs on tensors.
    deltas, carries = errors.T.contiguous().cpu().numpy(), carry.T.contiguous().cpu().numpy()
    advantages, advantage = np.empty_like(deltas), np.zeros_like(deltas[0])
    for t in reversed(range(len(deltas))):
        advantages[t] = advantage = deltas[t] + carries[t] * advantage
    return torch.from_numpy(advantages).T.contiguous().to(errors.device)
