"""``rltransformers list``: agents, configs, presets and every mechanism."""

import argparse
from typing import Any

from rltransformers.cli.printing import print_json
from rltransformers.cli.words import Parsers, command

OF_POLICY = ("encoder", "readout")  # axes that are settings of a policy; all others are settings of a backbone


def add(commands: Parsers) -> None:
    """Its options and help."""
    parser = command(
        commands,
        "list",
        "Show agents, configs, presets and every mechanism a backbone can be made of.",
        """
The names printed here are what a config takes under `agent`, `backbone.preset` and `backbone.<axis>`; a few mechanisms
are chosen by other settings, which `--json` names.

  rltransformers list
  rltransformers list --json
""",
    )
    parser.add_argument("--json", action="store_true", help="print all of it, with sources and abilities, as JSON")


def run(arguments: argparse.Namespace) -> None:
    """Print it."""
    contents = list_contents()
    if arguments.json:
        print_json(contents)
        return
    names = {**contents, "presets": [preset["name"] for preset in contents["presets"]]}
    for name in ("agents", "configs", "presets"):
        print(f"{name}\n  {', '.join(names[name])}\n")
    for axis, entries in contents["axes"].items():
        print(f"{'policy' if axis in OF_POLICY else 'backbone'}.{axis}")
        for entry in entries:
            print(f"  {entry['name']:<20} {entry['id']:<11} {entry['summary'].rstrip('.')}. [{entry['paper']}]")
            if entry["options"]:
                print(f"{'':35}options: {', '.join(entry['options'])}")
        print()


def list_contents() -> dict[str, Any]:
    """Everything ``rltransformers list`` knows, as JSON values."""
    from rltransformers.cli.configs import packaged_configs
    from rltransformers.cli.settings import catalogue
    from rltransformers.core.extensions import load_installed

    load_installed()
    known = {name: value for name, value in catalogue().items() if name != "settings"}
    return known | {"configs": packaged_configs()}
