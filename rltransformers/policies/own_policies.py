"""Policies that users make from those of this package: found by name, checked, stored, and learned whole."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

from rltransformers.backbone import BackboneConfig
from rltransformers.core.errors import ConfigError, did_you_mean
from rltransformers.core.ranges import check_settings, constructor_annotations, constructor_defaults, shown
from rltransformers.policies.extractors import subclasses
from rltransformers.policies.observed import read_observation
from rltransformers.policies.readouts.catalogue import read_readout

GIVEN_FIRST = ("observation_space", "action_space", "lr_schedule")
"""Positional arguments of a policy in the order in which Stable-Baselines3 gives them."""


def policy_settings(kind: type[BasePolicy], settings: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The keywords of a policy by name, each of its type and in its range; ``prefix`` as for ``check_settings``.

    A subclass that hands ``**kwargs`` on has the keywords of its parents too.

    Raises:
        ConfigError: for a value outside its type or range, one that a file cannot hold, and for an unknown keyword.
    """
    hints = {name: hint for name, hint in constructor_annotations(kind).items() if name not in GIVEN_FIRST}
    checked = check_settings(hints, settings, prefix)
    return {name: storable(value, prefix + name) for name, value in checked.items()}


def storable(value: Any, name: str) -> Any:
    """``value`` if the file of a policy can hold it, with Python's numbers in place of numpy's; else ConfigError."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {key: storable(each, f"{name}.{key}") for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(storable(each, f"{name}[{index}]") for index, each in enumerate(value))
    held = value is None or isinstance(value, bool | int | float | str | BackboneConfig)
    if held or (isinstance(value, type) and issubclass(value, BaseFeaturesExtractor)):
        return value
    raise ConfigError(
        f"{name} must be what a file can hold, so that the agent can be saved: a number, a text, a list or a mapping "
        f"of such; got {shown(value)}; give the name of a class or function, and find it by that where it is used"
    )


WITHOUT_CHANGE = ("losses", "checkpoint", "compute_dtype", "ff_chunks")
"""Settings of a backbone that can be others on load: outputs stay the same, but for rounding."""


NO_NETWORK = ("optimizer", "optimizer_kwargs", "epsilon")
"""Keywords of a policy that can be others on load: how it learns, and how often ``predict`` explores."""


def check_same_network(kind: type[BasePolicy], stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise ConfigError where the keywords ``given`` make another function of the weights than the ``stored`` ones.

    What a policy of ``kind`` is made without has its default.
    """
    ours, theirs = (_network_of(constructor_defaults(kind) | dict(keywords)) for keywords in (stored, given))
    changed = [name for name in ours | theirs if ours.get(name) != theirs.get(name)]
    if changed:
        name = changed[0]
        raise ConfigError(
            f"policy_kwargs.{name} is {shown(theirs.get(name))} and was {shown(ours.get(name))} when the weights were "
            "learned; they would compute something else, so leave it as it was"
        )


def _network_of(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """What says which function a network is, by name; different ways to write one setting are the same."""
    config = BackboneConfig.from_dict(keywords.get("backbone") or {})
    fields = {f"backbone.{name}": value for name, value in config.to_dict().items() if name not in WITHOUT_CHANGE}
    rest = {name: value for name, value in keywords.items() if name not in ("backbone", *NO_NETWORK)}
    read = rest | {"observation": read_observation(rest.get("observation")).to_dict()}
    read["features_extractor_kwargs"] = rest.get("features_extractor_kwargs") or {}
    readout = read_readout(rest.get("readout"))
    read["readout"] = None if readout is None else readout.to_dict()
    plain: dict[str, Any] = json.loads(json.dumps(stored_kwargs(read)))  # lists in place of tuples, as in files
    return fields | plain


def stored_kwargs(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a policy as files hold them: a ``BackboneConfig`` as its dictionary, classes by their names."""

    def plain(value: Any) -> Any:
        if isinstance(value, BackboneConfig):
            return value.to_dict()
        return value.__name__ if isinstance(value, type) else value

    return {name: plain(storable(value, name)) for name, value in settings.items()}


def named_policy(policy: str | type, aliases: Mapping[str, type]) -> type:
    """The class of a policy: a subclass of that which the aliases name first, by itself, by its name or by an alias.

    Of several classes of a name it is the newest that this program has defined; nothing is imported for it. Raises
    ConfigError for none.
    """
    base = next(iter(aliases.values()))
    known = {each.__name__: each for each in subclasses(base)} | dict(aliases)
    if isinstance(policy, type) and issubclass(policy, base):
        return policy
    if not isinstance(policy, str) or policy not in known:
        name = next(iter(aliases))
        hint = did_you_mean(policy, known) if isinstance(policy, str) else f"got {shown(policy)}"
        raise ConfigError(
            f"policy must be {name!r}, a subclass of {base.__name__}, or the name of one that this program has "
            f"imported, got {shown(policy)}; {hint}; the network is chosen in policy_kwargs"
        )
    return known[policy]
