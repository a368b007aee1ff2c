"""Completion in the shell behind ``rltransformers``: commands, options, settings, their values, configs and runs."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rltransformers.cli.configs import packaged_configs
from rltransformers.cli.settings import Setting, all_settings, catalogue


def complete(parser: Any) -> None:
    """Answer the shell, which has asked through variables of argcomplete, and leave; return when it has not."""
    from argcomplete import autocomplete
    from argcomplete.completers import ChoicesCompleter, DirectoriesCompleter

    from rltransformers.cli.main import WITH_SETTINGS
    from rltransformers.core.extensions import load_installed

    load_installed()
    for name in WITH_SETTINGS:
        _add_settings(parser.commands[name])
    for each in parser.commands.values():
        action: Any  # argcomplete adds an attribute to it
        for action in each._actions:
            if action.dest == "config":
                action.completer = _configs
            elif action.dest in ("folder", "resume", "run_or_checkpoint"):
                action.completer = DirectoriesCompleter()
            elif action.dest == "key":
                action.completer = _keys
            elif action.dest == "agent":
                action.completer = ChoicesCompleter(catalogue()["agents"])
    autocomplete(parser, always_complete_options="long")


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """Every setting as an option, for completion alone: ``split_overrides`` is what reads them."""
    by_key: dict[str, list[Setting]] = {}
    for each in all_settings():
        by_key.setdefault(each.key, []).append(each)
    taken = {option for action in parser._actions for option in action.option_strings}
    for key, entries in by_key.items():
        if f"--{key}" not in taken:
            names = list(dict.fromkeys(name for each in entries for name in each.names))
            text = entries[0].says.partition(". ")[0].replace("%", "%%")
            parser.add_argument(f"--{key}", metavar="VALUE", help=text, choices=names or None)


def _configs(prefix: str, **others: object) -> Iterator[str]:
    yield from (name for name in packaged_configs() if name.startswith(prefix))
    folder, _, start = prefix.rpartition("/")
    for path in sorted(Path(folder or ("/" if prefix.startswith("/") else ".")).glob(f"{start}*")):
        name = f"{folder}/{path.name}" if "/" in prefix else path.name
        if path.is_dir() and not path.name.startswith("."):
            yield f"{name}/"
        elif path.suffix in (".yaml", ".yml"):
            yield name


def _keys(prefix: str, **others: object) -> list[str]:
    return list(dict.fromkeys(each.key for each in all_settings() if each.key.startswith(prefix)))
