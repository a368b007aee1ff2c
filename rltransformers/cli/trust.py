"""Programs that a config or a run folder names (modules, pickles), and the consent that running them needs.

What somebody types on the command line is his own word; what stands in a file may be a stranger's.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltransformers.core.errors import ConfigError, error_line
from rltransformers.core.files import is_pickle
from rltransformers.core.modules import import_module
from rltransformers.core.ranges import check
from rltransformers.training.runs.experiment import BASELINES, ExperimentConfig

_DATA_BEHAVIORS = ("random", "demonstration", "checkpoint", "export")
_ALLOWED: set[str] = set()  # effects that somebody typed, or said yes to, in this process


@dataclass(frozen=True)
class Program:
    """Code that a file asks for: the dotted key that names it ("": a file beside the config), and what would happen."""

    place: str
    effect: str


def programs(config: ExperimentConfig, checkpoint: Path | None = None, training: bool = True) -> list[Program]:
    """Everything a run of ``config`` would execute besides this package and registered environments.

    With ``checkpoint`` the run begins by loading that file. Without ``training`` no behavior is recorded.
    """
    foreign = import_programs(config.imports)
    foreign += environment_programs(config.environment.id, config.environment.wrappers)
    dataset = config.dataset if training else None
    if dataset is not None and dataset.id is not None and is_pickle(dataset.id):
        foreign.append(Program("dataset.id", f"dataset.id {dataset.id!r} is a pickle, which runs code when it is read"))
    if dataset is not None and dataset.collect is not None:
        foreign += behavior_programs(dataset.collect.behaviors, "dataset.collect.behaviors")
    if checkpoint is not None and config.agent in BASELINES:
        foreign.append(Program("", f"{checkpoint} is a pickle of Stable-Baselines3 that runs code when it is loaded"))
    return foreign


def import_programs(modules: Sequence[str]) -> list[Program]:
    """Modules that register mechanisms."""
    return [Program("imports", f"imports runs the module {name}") for name in modules]


def import_typed(modules: Sequence[str]) -> None:
    """Import the modules that a command line names; what files name of earlier commands is asked for again."""
    _ALLOWED.clear()
    _ALLOWED.update(each.effect for each in import_programs(modules))
    import_modules(list(modules), "--import", trust=True)


def import_modules(modules: Any, source: str, trust: bool) -> None:
    """Import the modules that ``imports`` of the file ``source`` names; raise ConfigError as ``require_trust``."""
    names = check(modules, list[str], "imports")
    require_trust(import_programs(names), source, trust)
    for name in names:
        try:
            import_module(name)
        except Exception as error:  # somebody else's module may raise anything
            raise ConfigError(f"imports: the module {name!r} cannot be imported: {error_line(error)}") from error


def environment_programs(env_id: str, wrappers: Sequence[Any] = (), place: str = "environment.id") -> list[Program]:
    """Modules that an environment id ("module:id"), which stands at ``place``, and wrappers ("module:Class") import."""
    names = [(place, env_id)]
    for wrapper in wrappers:
        name = wrapper.get("name") if isinstance(wrapper, dict) else wrapper
        names.append(("environment.wrappers", str(name)))
    return [
        Program(place, f"{place} {name!r} imports the module {name.rpartition(':')[0]}")
        for place, name in names
        if ":" in name
    ]


def behavior_programs(texts: Sequence[str], place: str) -> list[Program]:
    """Pickles that behaviors load and modules that they import."""
    foreign = []
    for text in texts:
        kind, colon, argument = text.partition(":")
        if kind == "sb3":
            foreign.append(Program(place, f"{place} {text!r} loads a pickle of Stable-Baselines3, which runs code"))
        elif kind == "export" and not (argument.rpartition("=")[0] or argument).endswith(".onnx"):
            foreign.append(Program(place, f"{place} {text!r} loads a program of torch, which may run code"))
        elif colon and kind not in _DATA_BEHAVIORS and not kind.startswith("rltransformers."):
            foreign.append(Program(place, f"{place} {text!r} imports the module {kind}"))
    return foreign


def collect_programs(words: Sequence[str]) -> list[Program]:
    """Programs that words of ``rltransformers collect`` would execute, for words that a file holds."""
    given: dict[str, list[str]] = {"--import": [], "--env": [], "--behavior": []}
    for option, value in zip(words, (*words[1:], ""), strict=True):
        name, equals, attached = option.partition("=")
        given.setdefault(name, []).append(attached if equals else value)
    environments = [each for env_id in given["--env"] for each in environment_programs(env_id)]
    return [
        *import_programs(given["--import"]),
        *environments,
        *behavior_programs(given["--behavior"], "--behavior"),
    ]


def not_typed(foreign: Sequence[Program], overrides: Sequence[tuple[str, str]]) -> list[Program]:
    """The programs that come from the file and not from an override of the command line."""
    typed = [key for key, _ in overrides]
    return [each for each in foreign if not any(f"{each.place}.".startswith(f"{key}.") for key in typed)]


def require_trust(foreign: Sequence[Program], source: str | os.PathLike[str], trust: bool) -> None:
    """Raise ConfigError for programs that nobody allowed: not before, not by ``trust``, not now on the terminal."""
    foreign = [each for each in foreign if each.effect not in _ALLOWED]
    if trust or not foreign:
        return
    warning = f"{source} would run code of whoever made it: {'; '.join(each.effect for each in foreign)}"
    if sys.stdin.isatty() and sys.stderr.isatty():
        print(f"{warning}\nDo you trust it? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            _ALLOWED.update(each.effect for each in foreign)
            return
    raise ConfigError(f"{warning}; if you trust that, add --trust (from Python: trust=True)")
