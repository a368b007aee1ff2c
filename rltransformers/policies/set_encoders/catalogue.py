"""All encoders of elements by name."""

from collections.abc import Mapping
from typing import Any

from rltransformers.core.spec import Choice, by_name
from rltransformers.policies.set_encoders import bert, informer, linformer, luna, nystrom, set_transformer

ENCODERS = by_name(bert, set_transformer, linformer, luna, informer, nystrom)
DECIDES = "how the elements of one observation attend to each other"  # subject of the answer, part of a sentence


def read_encoder(value: str | Mapping[str, Any] | Choice | None, path: str = "encoder") -> Choice | None:
    """The choice that a setting says, None for none; raise ConfigError for unknown names, options and values."""
    return None if value is None else Choice.parse(value, "encoder", ENCODERS, path)
