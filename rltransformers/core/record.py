"""Record of one call of the backbone besides its output."""

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor


class Means(NamedTuple):
    """One or more means that add up to a loss; ``numbers``: of how many entries each is, None for all tokens."""

    values: Tensor
    numbers: Tensor | None


@dataclass
class Record:
    """Collects auxiliary losses and metrics while a backbone runs; pass it in, read it afterwards.

    Attributes:
        weights: also collect attention metrics, which needs explicit attention weights.
        losses: auxiliary losses ("span", "ponder", "compression", "commitment"), means over valid tokens, not weighted.
        metrics: scalars such as "layer0/lookback" (tokens) or "layer0/entropy" (nats).
        streams: where a loss of the backbone asks for them, the streams of the wanted tokens after every layer [B, t,
            D], normalized as its output is; None elsewhere.
        exits: what is predicted of leaving after each of these layers [B, t, E], or None.
        random_exits: the same of a pass in which every token left after a layer drawn for it, or None.
        lookback: attention mass by distance, [H, L] per layer, averaged over valid tokens.
        attention: the same of every token, [B, T, H, L] per layer, where a dictionary is given to collect it and
            ``weights`` is True. Of a call that is cut into blocks [B n, block, H, L], as ``windows.fold`` does.
        means: what each loss is the sum of, for processes that evaluate parts of one batch.
    """

    weights: bool = False
    losses: dict[str, Tensor] = field(default_factory=dict)
    metrics: dict[str, Tensor] = field(default_factory=dict)
    lookback: dict[str, Tensor] = field(default_factory=dict)
    attention: dict[str, Tensor] | None = None
    streams: list[Tensor] | None = None
    exits: Tensor | None = None
    random_exits: Tensor | None = None
    means: dict[str, list[Means]] = field(default_factory=dict)

    def add_loss(self, name: str, value: Tensor, number: Tensor | None = None) -> None:
        """Add one or more means, each of so many entries (None: of all tokens), which sum up over the layers."""
        self.means.setdefault(name, []).append(Means(value, number))
        value = value.sum()
        self.losses[name] = self.losses[name] + value if name in self.losses else value


class Probe:
    """A place in the network that reports losses and metrics to a record; without a record it does nothing.

    Attributes:
        place: name of the place, such as "layer0" or "layer0/ff".
        listens: True with a record; what costs something to compute is left out otherwise.
        reads_weights: True if attention weights have to be explicit.
    """

    def __init__(self, record: Record | None = None, place: str = "") -> None:
        self.record, self.place = record, place
        self.listens = record is not None
        self.reads_weights = record is not None and record.weights

    def at(self, place: str) -> "Probe":
        """The probe of a part of this place, or of the whole network."""
        return Probe(self.record, f"{self.place}/{place}" if self.place else place) if self.listens else self

    def unheard(self) -> "Probe":
        """A probe of this place whose record is thrown away."""
        return self if self.record is None else Probe(Record(weights=self.record.weights), self.place)

    def loss(self, name: str, value: Tensor, number: Tensor | None = None) -> None:
        """Add a mean over ``number`` entries, by default over all tokens, to an auxiliary loss of the whole network."""
        if self.record is not None:
            self.record.add_loss(name, value, number)

    def metric(self, name: str, value: Tensor) -> None:
        """Report a scalar."""
        if self.record is not None:
            self.record.metrics[f"{self.place}/{name}"] = value

    def lookback(self, mass: Tensor) -> None:
        """Report the attention mass by distance [H, L]."""
        if self.record is not None:
            self.record.lookback[self.place] = mass

    @property
    def reads_tokens(self) -> bool:
        """Whether the attention of every token is collected."""
        return self.record is not None and self.record.attention is not None

    def attention(self, mass: Tensor) -> None:
        """Report the attention mass of every token by distance [B, T, H, L]."""
        if self.record is not None and self.record.attention is not None:
            self.record.attention[self.place] = mass
