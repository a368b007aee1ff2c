"""An observation as a network reads it: one token, and the elements inside it that layers may look at.

Axes: ... any leading axes, usually [B, T], N elements, W width.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypedDict

import gymnasium as gym
from jaxtyping import Float
from torch import Tensor, nn

from rltransformers.backbone import BackboneConfig
from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import check
from rltransformers.core.spaces import leaf_spaces, space_from_leaves
from rltransformers.core.spec import Choice
from rltransformers.functional.context import EVERY, Context
from rltransformers.policies.encoders import ObservationEncoder
from rltransformers.policies.set_encoders.catalogue import read_encoder
from rltransformers.policies.set_encoders.encoder import SetEncoder, build_encoder
from rltransformers.policies.set_encoders.interface import Encoded


class ObservationOptions(TypedDict, total=False):
    """What the setting ``observation`` of a policy may hold."""

    encoder: str | Mapping[str, Any] | None


def read_observation(value: Mapping[str, Any] | None, path: str = "observation") -> Choice | None:
    """The encoder of elements that the setting names; None for none.

    Raises:
        ConfigError: an unknown key, encoder or option, or a value that an option does not take.
    """
    options = check(value or {}, ObservationOptions, path)
    return read_encoder(options.get("encoder"), f"{path}.encoder")


class Observed(NamedTuple):
    """One token per observation, and its elements where an encoder reads some."""

    token: Float[Tensor, "*n W"]
    elements: Encoded | None

    def at_once(self) -> "Observed":
        """Observations [B] as those of one step, [B, 1]."""
        elements = self.elements
        if elements is not None:
            elements = Encoded(elements.rows.unsqueeze(1), elements.exists.unsqueeze(1), elements.pooled.unsqueeze(1))
        return Observed(self.token.unsqueeze(1), elements)

    def context(self, tokens: slice = EVERY) -> Context | None:
        """The elements of observations [B, S] as those of the ``tokens`` of a call."""
        return None if self.elements is None else Context(self.elements.rows, self.elements.exists, tokens)


def observation_parts(
    space: gym.Space[Any], config: BackboneConfig, encoder: Choice | None
) -> tuple[ObservationEncoder | None, SetEncoder | None]:
    """What makes the token of all leaves but those of the elements, and what encodes the elements; None for nothing.

    Raises:
        ConfigError: the space or the encoder cannot be had, or the backbone reads elements and no encoder gives any.
    """
    if encoder is None:
        if config.reads_context:
            raise ConfigError(
                f"topology {config.topology!r} reads the elements of observations, and no encoder gives any: name one, "
                "as in observation: {encoder: bert}, or set topology to 'decoder'"
            )
        return ObservationEncoder(space, config.width), None
    elements = build_encoder(encoder, space, config.width)
    others = {path: leaf for path, leaf in leaf_spaces(space).items() if path not in elements.paths}
    return ObservationEncoder(space_from_leaves(others), config.width) if others else None, elements


def observe(encoder: nn.Module | None, elements: nn.Module | None, leaves: Mapping[str, Tensor]) -> Observed:
    """The token: the sum of the leaves' and of what pooling makes of the elements; and the elements."""
    if elements is None:
        assert encoder is not None
        return Observed(encoder(leaves), None)
    found: Encoded = elements(leaves)
    return Observed(found.pooled if encoder is None else encoder(leaves) + found.pooled, found)
