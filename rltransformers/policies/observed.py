"""Which encoders read an observation: those of its spaces, and those that settings name.

Axes: ... any leading axes, usually [B, T], N elements, W width.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

from torch import Tensor, nn

from rltransformers.backbone import BackboneConfig
from rltransformers.backbone.rules import nearest_divisors
from rltransformers.core.errors import ConfigError, did_you_mean
from rltransformers.core.ranges import check
from rltransformers.core.spaces import Space, leaf_spaces, space_from_leaves
from rltransformers.core.spec import Choice
from rltransformers.policies.encoders import ObservationEncoder
from rltransformers.policies.extractors import Extractor, FeaturesExtractor
from rltransformers.policies.registered import LeafChoice, read_leaves
from rltransformers.policies.set_encoders.catalogue import read_encoder
from rltransformers.policies.set_encoders.elements import Elements
from rltransformers.policies.set_encoders.interface import Encoded, EncoderOptions, Pooling, check_table


class ObservationOptions(TypedDict, total=False):
    """Keys of the setting ``observation`` of a policy.

    Attributes:
        encoder: what reads the elements of a set or sequence inside the observation; None for no such elements.
        leaves: encoders of other leaves of the observation by path: a name, or {name: ..., option: value}.
    """

    encoder: str | Mapping[str, Any] | None
    leaves: Mapping[str, str | Mapping[str, Any]] | None


@dataclass(frozen=True)
class Encoding:
    """Encoders of an observation that replace those of its spaces."""

    elements: Choice | None = None  # of a set or sequence inside the observation
    leaves: Mapping[str, LeafChoice] = field(default_factory=dict)  # of other leaves by path
    extractor: tuple[Extractor, Mapping[str, Any]] | None = None  # of Stable-Baselines3 for all other leaves together

    def to_dict(self) -> dict[str, Any]:
        """The setting that ``read_observation`` reads back, without the extractor."""
        return {
            "encoder": None if self.elements is None else self.elements.to_dict(),
            "leaves": {path: choice.to_dict() for path, choice in self.leaves.items()},
        }

    def encoder(self, space: Space, width: int) -> nn.Module:
        """From the leaves of a space by path to one token of ``width`` numbers; ConfigError if that cannot be had."""
        unknown = [path for path in self.leaves if path not in leaf_spaces(space)]
        if unknown:
            known = did_you_mean(unknown[0], map(repr, leaf_spaces(space)))
            raise ConfigError(f"observation.leaves: {unknown[0]!r} is no leaf that needs an encoder; {known}")
        if self.extractor is None:
            return ObservationEncoder(space, width, self.leaves)
        if self.leaves:
            raise ConfigError(
                "a features_extractor_class reads all leaves, so observation.leaves would have no effect; leave one out"
            )
        return FeaturesExtractor(space, width, *self.extractor)


def read_observation(value: Mapping[str, Any] | None, path: str = "observation") -> Encoding:
    """The encoders that the setting names; ConfigError for unknown keys, encoders, options and values."""
    options = check(value or {}, ObservationOptions, path)
    elements = read_encoder(options.get("encoder"), f"{path}.encoder")
    return Encoding(elements, read_leaves(options.get("leaves"), f"{path}.leaves"))


def read_encoding(
    observation: Mapping[str, Any] | None, extractor: Extractor | None, options: Mapping[str, Any] | None
) -> Encoding:
    """``read_observation``, and a features extractor with its options; ConfigError for options without one."""
    encoding = read_observation(observation)
    if extractor is None and options:
        raise ConfigError("features_extractor_kwargs have no effect without a features_extractor_class")
    return encoding if extractor is None else replace(encoding, extractor=(extractor, dict(options or {})))


def observation_parts(
    space: Space, config: BackboneConfig, encoding: Encoding
) -> tuple[nn.Module | None, "SetEncoder | None"]:
    """Encoder of the token, of all leaves but those of the elements, and encoder of the elements; None for nothing.

    Raises:
        ConfigError: the space or the encoder cannot be had, or the backbone reads elements and no encoder gives any.
    """
    if encoding.elements is None:
        if config.reads_context:
            raise ConfigError(
                f"topology {config.topology!r} reads the elements of observations, and no encoder gives any: name one, "
                "as in observation: {encoder: bert}, or set topology to 'decoder'"
            )
        return encoding.encoder(space, config.width), None
    elements = build_encoder(encoding.elements, space, config.width)
    others = {path: leaf for path, leaf in leaf_spaces(space).items() if path not in elements.elements.paths}
    return encoding.encoder(space_from_leaves(others), config.width) if others else None, elements


def build_encoder(choice: Choice, space: Space, width: int) -> "SetEncoder":
    """The encoder that a choice says; ConfigError if it does not fit the elements of the space or ``width``."""
    options: EncoderOptions = choice.options
    if width % options.heads:
        raise ConfigError(
            f"encoder {choice.name!r}: heads ({options.heads}) must divide width ({width}); nearest that do: "
            f"{nearest_divisors(width, options.heads)}"
        )
    inner = options.ff_width or 4 * width
    check_table(f"a feed-forward layer of encoder {choice.name!r}", width, inner, "lower ff_width or the width")
    elements = Elements(space, width, options)
    return SetEncoder(elements, choice.build(elements.count, width), Pooling(width, options.heads, inner))


class SetEncoder(nn.Module):
    """Encodes the elements of every observation; ``stack`` makes rows [B, N, W] of tokens and existence [B, N]."""

    def __init__(self, elements: Elements, stack: nn.Module, pooling: Pooling) -> None:
        super().__init__()
        self.elements, self.stack, self.pooling = elements, stack, pooling

    def forward(self, leaves: Mapping[str, Tensor]) -> Encoded:
        """From leaves [..., leaf shape] by path."""
        tokens, exists = self.elements(leaves)
        lead, (count, width) = tokens.shape[:-2], tokens.shape[-2:]
        flat = exists.reshape(math.prod(lead), count)
        rows = self.stack(tokens.reshape(math.prod(lead), count, width), flat).masked_fill(~flat[..., None], 0.0)
        pooled = self.pooling(rows, flat)
        return Encoded(rows.reshape(*lead, count, width), exists, pooled.reshape(*lead, width))
