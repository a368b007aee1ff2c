"""What one call of the backbone can tell besides its output."""

from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Record:
    """Collects auxiliary losses and metrics while a backbone runs; pass it in, read it afterwards.

    Attributes:
        weights: also collect attention metrics, which needs explicit attention weights.
        losses: auxiliary losses ("span", "ponder", "compression"), means over valid tokens, not weighted.
        metrics: scalars such as "layer0/lookback" (tokens) or "layer0/entropy" (nats).
        lookback: attention mass by distance, [H, L] per layer, averaged over valid tokens.
    """

    weights: bool = False
    losses: dict[str, Tensor] = field(default_factory=dict)
    metrics: dict[str, Tensor] = field(default_factory=dict)
    lookback: dict[str, Tensor] = field(default_factory=dict)

    def add_loss(self, name: str, value: Tensor) -> None:
        """Sum of the contributions of all layers."""
        self.losses[name] = self.losses[name] + value if name in self.losses else value
