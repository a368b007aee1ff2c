"""Every setting of a run by its dotted key: what it takes, its default, and the right key for a wrong one.

It is read from ``catalogue.json`` (``docs/_tools/update_docs.py`` writes it), so that help, suggestions and completion
need neither torch nor Stable-Baselines3. Registered mechanisms of other packages are added to it.
"""

import difflib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from typing import Any

from rltransformers.cli.entries import loss_entries, mechanism_entry, option_entries
from rltransformers.core.errors import ConfigError, did_you_mean
from rltransformers.core.extensions import EXTENSIONS, Extension
from rltransformers.core.synonyms import meant_by, with_value

SET_ELSEWHERE = {
    "self": "",
    "policy": "",
    "env": "environment",
    "dataset": "dataset",
    "policy_kwargs": "policy and backbone",
    "seed": "seed",
    "tensorboard_log": "output",
    "verbose": "--verbose",
    "_init_setup_model": "",
}
"""Keywords of agents that are no settings under ``algorithm``, and where a config has them."""


def refuse_set_elsewhere(algorithm: Mapping[str, Any]) -> None:
    """Raise ConfigError for a keyword of agents that a config has in another section."""
    for key in algorithm:
        if SET_ELSEWHERE.get(key):
            raise ConfigError(f"algorithm.{key} is set elsewhere in a config: {SET_ELSEWHERE[key]}")


@dataclass(frozen=True)
class Setting:
    """One setting."""

    key: str  # with dots, as "algorithm.gamma"
    accepts: str  # type and range in words
    default: str  # as YAML; "required" where there is none
    says: str  # what it does, first in one sentence
    agents: tuple[str, ...] = ()  # those that have it; empty: all of them
    of: str = ""  # the mechanism that has it as an option; empty: it is none
    names: tuple[str, ...] = ()  # values that it can have, where these have names


def catalogue() -> dict[str, Any]:
    """Mechanisms by axis, presets, agents, wrappers and settings, as JSON values; registered mechanisms included."""
    return _catalogue(frozenset(EXTENSIONS))


@cache
def _catalogue(registered: frozenset[tuple[str, str]]) -> dict[str, Any]:
    text = (resources.files("rltransformers.cli") / "catalogue.json").read_text(encoding="utf-8")
    values: dict[str, Any] = json.loads(text)
    for axis, name in sorted(registered):
        _add(values, EXTENSIONS[axis, name])
    return values


def _add(values: dict[str, Any], extension: Extension) -> None:
    spec, settings = extension.spec, values["settings"]
    values["axes"][spec.axis].append(mechanism_entry(spec))
    place = {"encoder": "policy.observation.encoder", "readout": "policy.readout"}.get(spec.axis)
    key = place or f"backbone.{spec.axis}"
    takers = {agent for entry in settings if entry["key"].startswith(f"{key}.") for agent in entry["agents"]}
    agents = [agent for agent in values["agents"] if agent in takers]
    if spec.axis == "losses":
        settings += [entry | {"agents": agents} for entry in loss_entries(spec)]
        return
    for entry in settings:
        if entry["key"] in (key, f"{key}.name") and "names" in entry:
            entry["names"].append(spec.name)
    settings += [entry | {"agents": agents} for entry in option_entries(key, spec)]


def all_settings() -> tuple[Setting, ...]:
    """Every setting, in the order of a config; those of registered mechanisms last."""
    return _settings(frozenset(EXTENSIONS))


@cache
def _settings(registered: frozenset[tuple[str, str]]) -> tuple[Setting, ...]:
    known = [each.name for each in fields(Setting)]
    entries: list[dict[str, Any]] = [
        {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items() if name in known}
        for entry in _catalogue(registered)["settings"]
    ]
    return tuple(Setting(**entry) for entry in entries)


def find_settings(prefix: str = "", agent: str | None = None) -> list[Setting]:
    """The settings whose key begins with ``prefix``, of ``agent`` where one is given; ConfigError for none."""
    agents = catalogue()["agents"]
    if agent is not None and agent not in agents:
        raise ConfigError(f"unknown agent {agent!r}; {did_you_mean(agent, agents)}")
    fitting = [each for each in all_settings() if agent is None or not each.agents or agent in each.agents]
    found = [each for each in fitting if each.key.startswith(prefix.removesuffix("*"))]
    if not found:
        whose = "" if agent is None else f" of agent {agent}"
        raise ConfigError(
            f"no setting{whose} begins with {prefix}; {suggestion(prefix, {each.key for each in fitting})}"
        )
    return found


def refuse_unknown_settings(values: Mapping[Any, Any], source: str = "") -> None:
    """Raise unless every key of a config is a setting, those of ``backbone``, ``algorithm`` and ``policy`` included.

    What stands below a setting (keywords of an environment, options of a mechanism) is left to who reads it. ``source``
    begins the message, as "run.yaml: ", which has the full key that was meant.
    """
    agent = values.get("agent")
    anyone = agent not in catalogue()["agents"]
    every = [each for each in all_settings() if not each.of]
    own = {each.key for each in every if anyone or not each.agents or agent in each.agents}
    # Of other sections ``ExperimentConfig`` says which agents they are for.
    known = own | {each.key for each in every if not each.key.startswith(("algorithm.", "policy."))}
    meant = own | {key for key in known if not key.startswith("backbone.")}
    sections = {key.rpartition(".")[0] for key in known}
    remaining: list[tuple[str, Mapping[Any, Any]]] = [("", values)]
    while remaining:
        place, inside = remaining.pop(0)
        for name, value in inside.items():
            key = f"{place}{name}"
            if key not in known and key not in sections and not (place == "algorithm." and name in SET_ELSEWHERE):
                while isinstance(value, Mapping) and value:  # a section that is unknown: its first setting says more
                    name, value = next(iter(value.items()))
                    key = f"{key}.{name}"
                agents = [other for each in all_settings() if each.key == key for other in each.agents]
                way_out = f" of agent {agent}; agents that have it: {', '.join(agents)}" if agents else ""
                if not way_out or meant_by(name):
                    way_out += f"; {suggestion(key, meant)}"
                raise ConfigError(f"{source}unknown setting {key}{way_out}")
            mechanism = key.startswith("backbone.") or f"{key}.name" in known
            if key in sections and isinstance(value, Mapping) and not mechanism:
                remaining.append((f"{key}.", value))


def suggestion(key: str, known: Collection[str]) -> str:
    """A sentence with the keys that ``key`` may have been meant to be, else with all beside it, else the outermost.

    Tried in turn: the same name elsewhere and what other programs call so, a name like it beside it, a key like it
    (where nothing stands beside it), a name like it elsewhere.
    """
    place, _, name = key.rpartition(".")
    keys = sorted({*known, *(each.rpartition(".")[0] for each in known if "." in each)})
    beside = {each.rpartition(".")[2]: each for each in keys if each.rpartition(".")[0] == place}
    named: dict[str, list[str]] = {}
    for each in keys:
        named.setdefault(each.rpartition(".")[2], []).append(each)
    close = by_likeness(key, named.get(name, ())) + [each for each in meant_by(name) if each in keys]
    close = sorted(dict.fromkeys(close), key=lambda each: each.count("."))  # options of mechanisms last
    if not close:
        close = [beside[match] for match in difflib.get_close_matches(name, beside, n=2)]
        close = close or ([] if beside else difflib.get_close_matches(key, keys, n=2, cutoff=0.8))
        if not close:
            close = [each for match in difflib.get_close_matches(name, named, n=1, cutoff=0.8) for each in named[match]]
        close = by_likeness(key, close)
    if close:
        return f"did you mean {' or '.join(with_value(each, name) for each in close[:2])}?"
    if beside:
        return f"known: {', '.join(sorted(beside))}"
    outermost = {each.partition(".")[0] for each in keys}
    return f"known: {', '.join(sorted(outermost))}; `rltransformers settings` lists what stands below"


def by_likeness(key: str, keys: Iterable[str]) -> list[str]:
    """``keys``, those first that are most like ``key``."""
    return sorted(keys, key=lambda each: -difflib.SequenceMatcher(None, key, each).ratio())
