"""The price of entropy that keeps a stochastic Decision Transformer from becoming certain (arXiv 2202.05607)."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rltransformers.core.checkpoint import check_tensor, restore_optimizer
from rltransformers.core.ranges import check

FIRST_TEMPERATURE, LEARNING_RATE = 0.1, 1e-4
"""As in the published code of the paper."""


class EntropyBound:
    """A temperature that rises while the entropy of a policy lies below a bound, and falls while it lies above.

    Zheng et al. 2022, section 4.1: the loss of the policy is its negative log-likelihood minus temperature times
    entropy, that of the temperature is temperature times (entropy - bound). The bound is minus one nat per component,
    in units where the bounds of an action are -1 and 1.

    Args:
        components: of all Boxes of an action.
    """

    def __init__(self, components: int, device: torch.device) -> None:
        self.bound = -float(components)
        self.log_temperature = torch.tensor(math.log(FIRST_TEMPERATURE), device=device, requires_grad=True)
        self.optimizer = torch.optim.Adam([self.log_temperature], lr=LEARNING_RATE)

    @property
    def temperature(self) -> Float[Tensor, ""]:
        """The temperature: worth of a nat of entropy in nats of likelihood."""
        return self.log_temperature.detach().exp()

    def step(self, entropy: Float[Tensor, ""]) -> None:
        """Move the temperature by one step of Adam, for a policy of this mean entropy."""
        loss = self.log_temperature.exp() * (entropy.detach() - self.bound)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()

    def tensors(self) -> dict[str, Any]:
        """Tensors for a checkpoint."""
        return {"log_temperature": self.log_temperature.detach(), "optimizer": self.optimizer.state_dict()}

    def restore(self, stored: Any) -> None:
        """Take on what a checkpoint holds.

        Raises:
            CheckpointError: names the first part that is missing or has another shape.
        """
        stored = check(stored, Mapping[str, Any], "entropy")
        found = check_tensor(stored["log_temperature"], "entropy.log_temperature", (), torch.float32)
        with torch.no_grad():
            self.log_temperature.copy_(found)
        restore_optimizer(self.optimizer, stored["optimizer"], "entropy.optimizer")
