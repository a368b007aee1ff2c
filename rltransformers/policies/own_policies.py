"""Policies that users make from those of this package: found by name, checked, stored, and learned whole."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from stable_baselines3.common.policies import BasePolicy
from torch import nn

from rltransformers.backbone import BackboneConfig
from rltransformers.backbone.config import without_idle
from rltransformers.core.errors import ConfigError, did_you_mean
from rltransformers.core.ranges import annotations, check_settings, shown
from rltransformers.policies.extractors import subclasses


def over(optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimiser itself where it has these parameters, else one like it, without a past, that has."""
    wanted = list(parameters)
    held = [each for group in optimizer.param_groups for each in group["params"]]
    if [id(each) for each in held] == [id(each) for each in wanted]:
        return optimizer
    kind: Any = type(optimizer)
    return cast(torch.optim.Optimizer, kind(wanted, **optimizer.defaults))


def policy_settings(kind: type[BasePolicy], settings: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The keywords of a policy by name, each of its type and in its range; ``prefix`` as for ``check_arguments``.

    A subclass that hands ``**kwargs`` on has the keywords of its parents too.

    Raises:
        ConfigError: for a value outside its type or range, and for an unknown keyword.
    """
    hints: dict[str, Any] = {}
    for each in kind.__mro__:
        make = vars(each).get("__init__")
        if make is not None:
            hints = annotations(make) | hints
            if all(part.kind is not part.VAR_KEYWORD for part in inspect.signature(make).parameters.values()):
                break
    without = ("observation_space", "action_space", "lr_schedule")
    return check_settings({name: hint for name, hint in hints.items() if name not in without}, settings, prefix)


def restored_kwargs(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a policy in a file, without settings of the backbone that earlier versions took to no effect."""
    return {name: without_idle(value) if name == "backbone" else value for name, value in stored.items()}


def stored_kwargs(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a policy as files hold them: a ``BackboneConfig`` as its dictionary, classes by their names."""

    def plain(value: Any) -> Any:
        if isinstance(value, BackboneConfig):
            return value.to_dict()
        return value.__name__ if isinstance(value, type) else value

    return {name: plain(value) for name, value in settings.items()}


def named_policy(policy: str | type, aliases: Mapping[str, type]) -> type:
    """The class of a policy: a subclass of that which the aliases name first, by itself, by its name or by an alias.

    Of several classes of a name it is the newest that this program has defined; nothing is imported for it.

    Raises:
        ConfigError: it is none.
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
