"""One call of the backbone, as every part of it sees it.

Axes: B batch, T tokens.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from jaxtyping import Int, Shaped
from torch import Tensor

from rltransformers.core.record import Probe
from rltransformers.functional.context import EVERY, Context
from rltransformers.functional.windows import Tokens

NOBODY = slice(0, 0)
"""No token: what is computed for outputs alone is left out, and the state goes on."""

SILENT = Probe()
"""Reports nothing."""

Made = TypeVar("Made")


def chosen(x: Shaped[Tensor, "B T *n"], wanted: slice) -> Shaped[Tensor, "B t *n"]:
    """The ``wanted`` tokens; all of them cost nothing."""
    return x if wanted == EVERY else x[:, wanted]


@dataclass(frozen=True)
class Call:
    """Arguments of one call that all layers share, and the record that listens to it.

    Attributes:
        tokens: the place of every token in its episode.
        probe: takes losses and metrics; tells nothing by default.
        wanted: tokens whose outputs are needed; what is computed for the others alone may be left out.
        clock: tokens that were written to the rings of the acting state before this call, one number for all rings;
            None for a state that is not a ring.
        overwrites: whether the tensors of the state belong to the call, which then writes into them.
        tables: what depends on weights and sizes alone, computed by whoever makes many calls with the same weights
            (``Backbone.tables``), by the place that uses it.
        made: what layers derived for this call, see ``once``.
        context: elements that tokens look at besides the stream; None where the layers read none.
    """

    tokens: Tokens
    probe: Probe = SILENT
    wanted: slice = field(default_factory=lambda: EVERY)
    clock: Int[Tensor, ""] | None = None
    overwrites: bool = False
    tables: dict[str, Tensor] = field(default_factory=dict)
    place: str = ""
    made: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)
    context: Context | None = None

    def at(self, place: str, wanted: slice) -> "Call":
        """The same call in one layer, which has to give the ``wanted`` tokens."""
        probe = self.probe.at(place) if self.probe.listens else SILENT
        return Call(  # made anew rather than replaced, which takes three times as long
            self.tokens, probe, wanted, self.clock, self.overwrites, self.tables, place, self.made, self.context
        )

    def cut(self, block: int) -> "Call":
        """Blocks of ``block`` tokens as further batch rows; nothing of a ring, of tables or of a context."""
        folded = self.once(("blocks", block), lambda: Call(self.tokens.cut(block)))
        return replace(folded, probe=self.probe)

    def silent(self) -> "Call":
        """The same call without a record."""
        return replace(self, probe=SILENT)

    def unheard(self) -> "Call":
        """A copy whose losses and metrics go to a throw-away record (second run of a checkpointed layer)."""
        return replace(self, probe=self.probe.unheard())

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Result of ``make``, computed by the first layer that asks for ``key`` and shared by the others."""
        if key not in self.made:
            self.made[key] = make()
        found: Made = self.made[key]
        return found
