"""All readouts by name."""

from collections.abc import Mapping
from typing import Any

from rltransformers.core.spec import Choice, by_name
from rltransformers.policies.readouts import knn, spalm

READOUTS = by_name(knn, spalm)
DECIDES = "what the action head adds from recorded actions"  # subject of the answer, part of a sentence


def read_readout(value: str | Mapping[str, Any] | Choice | None, path: str = "readout") -> Choice | None:
    """The choice that a setting says, None for none; raise ConfigError for unknown names, options and values."""
    return None if value is None else Choice.parse(value, "readout", READOUTS, path)
