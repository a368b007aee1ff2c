"""Which runs belong together: folders behind paths and patterns, and configs by what differs in them."""

import glob
import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rltransformers.core.described import exact
from rltransformers.core.errors import ConfigError
from rltransformers.core.files import check_path, check_run
from rltransformers.core.yaml_text import yaml_of
from rltransformers.training.runs.experiment import AROUND

ASIDE = ("seed", *AROUND, "tune")
"""Settings that are no part of what a run computes."""


def find_runs(places: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Run folders: those that are named, those below a folder, those that fit a pattern; each once, in this order.

    Raises:
        ConfigError: for a place without one.
    """
    places, folders = list(places), dict[Path, Path]()
    if not places:
        raise ConfigError("no run is named; give run folders, folders of them, or patterns such as runs/cue*")
    for place in places:
        if not os.fspath(place):
            raise ConfigError("the name of a run is empty, as of a shell variable that is not set; . is this folder")
        path = check_path(os.path.expanduser(place))
        matches = [path]
        if not path.exists() and glob.has_magic(str(path)):
            matches = sorted((Path(each) for each in glob.glob(str(path), recursive=True)), key=natural)
        below = [run for match in matches for run in _runs_at(match)]
        if not below and not (path.is_file() and _is_run(path.with_suffix(""))):  # the log beside a run: of a `*`
            if path.is_dir():
                raise ConfigError(f"{path} holds no run folder: no config.yaml in it or below; name another folder")
            if glob.has_magic(str(path)):
                raise ConfigError(f"no run folder fits {path}; put a pattern in quotes, or name the folders")
            check_run(path)
        for run in below:
            folders.setdefault(run.resolve(), run)
    return list(folders.values())


def _is_run(path: Path) -> bool:
    return (path / "config.yaml").is_file()


def _runs_at(path: Path) -> list[Path]:
    if _is_run(path):
        return [path]
    found = {config.parent for config in path.rglob("config.yaml")} if path.is_dir() else set()
    return sorted((run for run in found if not found & {*run.parents}), key=natural)  # none inside another


def natural(path: Path) -> list[tuple[int, str]]:
    """Sorting key: seed10 behind seed9."""
    parts = re.split(r"(\d+)", str(path))
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def without_aside(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a config that are part of what a run computes."""
    return {name: value for name, value in config.items() if name not in ASIDE}


def names_of(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each of several configs, JSON values: what differs in them, seed aside.

    That is the agent and the environment where these differ, and the settings in which configs of the same agent and
    environment differ. A setting that a config does not have is left out; where it has none of them they are
    "default". A single config is called by its agent. Where two would be called the same, a number tells them apart.
    """
    agents = [str(config["agent"]) for config in configs]
    environments = [environment_of(config) for config in configs]
    names = []
    for config, agent, environment in zip(configs, agents, environments, strict=True):
        parts = [agent] if len(set(agents)) > 1 else []
        parts += [environment or "no environment"] if len(set(environments)) > 1 else []
        peers = [
            without_aside(other)
            for other, *whose in zip(configs, agents, environments, strict=True)
            if whose == [agent, environment]
        ]
        values = {key: _value(config, key) for key in differing(peers)}
        settings = {key: f"{key}={value_text(value)}" for key, value in values.items()}
        own = [settings[key] for key, value in values.items() if value is not _ABSENT]
        name = ", ".join([*parts, *(own or settings.values())]) or agent
        numbered = (name if number == 1 else f"{name} ({number})" for number in itertools.count(1))
        names.append(next(each for each in numbered if each not in names))
    return names


def further_differences(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Dotted keys of environment, evaluation and training in which agents of one environment differ, and not by their
    kind: what one of them does not have is no difference.
    """
    keys: list[str] = []
    for environment in dict.fromkeys(map(environment_of, configs)):
        peers = [config for config in configs if environment_of(config) == environment]
        first = list({config["agent"]: config for config in reversed(peers)}.values())  # one of each agent
        shared = [{name: config[name] for name in ("environment", "evaluation", "train")} for config in first]
        keys += [key for key in differing(shared) if None not in [_value(config, key) for config in shared]]
    return list(dict.fromkeys(key for key in keys if key != "evaluation.target_returns"))


def environment_of(config: Mapping[str, Any]) -> str:
    """Id of the environment; empty without one."""
    return str((config["environment"] or {}).get("id", ""))


def differing(configs: Sequence[Mapping[str, Any]], place: str = "") -> list[str]:
    """The dotted keys whose values differ between configs; mappings are entered where all values of a key are such."""
    keys: list[str] = []
    for name in dict.fromkeys(name for config in configs for name in config):
        values = [config[name] for config in configs if name in config]
        if len(values) < len(configs):
            keys.append(f"{place}{name}")
        elif all(isinstance(value, Mapping) for value in values):
            keys += differing(values, f"{place}{name}.")
        elif any(value != values[0] for value in values):
            keys.append(f"{place}{name}")
    return keys


_ABSENT = object()


def _value(config: Any, key: str) -> Any:
    for name in key.split("."):
        config = config.get(name, _ABSENT) if isinstance(config, Mapping) else _ABSENT
    return config


def value_text(value: Any) -> str:
    """A value as one line of YAML."""
    if value is _ABSENT:
        return "default"
    if isinstance(value, float):
        return exact(value)
    text = yaml_of(value, flow=True)
    return text.removesuffix("\n").removesuffix("\n...").strip()
