"""Record of one call of the backbone besides its output."""

from dataclasses import dataclass, field, replace

from torch import Tensor


@dataclass
class Record:
    """Collects auxiliary losses and metrics while a backbone runs; pass it in, read it afterwards.

    Attributes:
        weights: also collect attention metrics, which needs explicit attention weights.
        losses: auxiliary losses ("span", "ponder", "compression", "commitment"), means over valid tokens, not weighted.
        metrics: scalars such as "layer0/lookback" (tokens) or "layer0/entropy" (nats).
        streams: where a loss of the backbone asks for them, the streams of the wanted tokens after every layer [B, t,
            D], normalised as its output is; None elsewhere.
        exits: what is predicted of leaving after each of these layers [B, t, E], or None.
        mixed: the same of a pass in which every token left after a layer drawn for it, or None.
        lookback: attention mass by distance, [H, L] per layer, averaged over valid tokens.
    """

    weights: bool = False
    losses: dict[str, Tensor] = field(default_factory=dict)
    metrics: dict[str, Tensor] = field(default_factory=dict)
    lookback: dict[str, Tensor] = field(default_factory=dict)
    streams: list[Tensor] | None = None
    exits: Tensor | None = None
    mixed: Tensor | None = None

    def add_loss(self, name: str, value: Tensor) -> None:
        """Sum of the contributions of all layers."""
        self.losses[name] = self.losses[name] + value if name in self.losses else value

    def choose(self, tokens: slice) -> None:
        """Keep only these of the wanted tokens."""
        self.streams = None if self.streams is None else [each[:, tokens] for each in self.streams]
        self.exits = None if self.exits is None else self.exits[:, tokens]
        self.mixed = None if self.mixed is None else self.mixed[:, tokens]


@dataclass(frozen=True)
class Probe:
    """A place in the network that may tell something about itself; without a record nothing is told.

    Attributes:
        record: what collects, or None.
        place: name of the place, such as "layer0" or "layer0/ff".
    """

    record: Record | None = None
    place: str = ""

    @property
    def listens(self) -> bool:
        """Whether anybody collects: what costs something to compute is left out otherwise."""
        return self.record is not None

    @property
    def reads_weights(self) -> bool:
        """Whether attention weights have to be explicit."""
        return self.record is not None and self.record.weights

    @property
    def streams(self) -> list[Tensor] | None:
        """Where streams after layers are collected; None where nobody asks for them."""
        return None if self.record is None else self.record.streams

    def at(self, place: str) -> "Probe":
        """The same for a part of this place, or of the whole network."""
        return self if self.record is None else replace(self, place=f"{self.place}/{place}" if self.place else place)

    def unheard(self) -> "Probe":
        """The same for a record that nobody reads."""
        return self if self.record is None else replace(self, record=Record(weights=self.record.weights))

    def loss(self, name: str, value: Tensor) -> None:
        """Add to an auxiliary loss of the whole network."""
        if self.record is not None:
            self.record.add_loss(name, value)

    def metric(self, name: str, value: Tensor) -> None:
        """Tell a scalar."""
        if self.record is not None:
            self.record.metrics[f"{self.place}/{name}"] = value

    def lookback(self, mass: Tensor) -> None:
        """Tell the attention mass by distance [H, L]."""
        if self.record is not None:
            self.record.lookback[self.place] = mass
