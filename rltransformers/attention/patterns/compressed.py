"""The raw part of a compressive memory: tokens whose block is not compressed yet."""

from dataclasses import dataclass

from torch import Tensor

from rltransformers.attention.patterns.interface import Reach
from rltransformers.functional.windows import compressed_blocks


@dataclass(frozen=True)
class RawPart(Reach):
    """Distances down to the first token that is not in a compressed block."""

    recent: int = 0
    rate: int = 1

    @property
    def anchored(self) -> bool:
        """The edge is the end of the newest block."""
        return True

    def limit(self, p: Tensor) -> Tensor:
        """p - c F(p)."""
        return p - self.rate * compressed_blocks(p, self.recent, self.rate)
