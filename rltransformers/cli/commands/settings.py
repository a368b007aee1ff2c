"""``rltransformers settings``: help of every setting of a run."""

import argparse
import textwrap
from dataclasses import asdict

from rltransformers.cli.printing import print_json
from rltransformers.cli.words import Parsers, command


def add(commands: Parsers) -> None:
    """Its options and help."""
    parser = command(
        commands,
        "settings",
        "Explain every setting of a run: what it takes, its default, what it does.",
        """
A setting is written in a config, or on the command line of train, tune and show as --KEY VALUE. KEY is a dotted name or
the beginning of one; without it all settings are explained.

  rltransformers settings algorithm --agent gtrxl_ppo
  rltransformers settings backbone.pattern
  rltransformers settings evaluation.every
""",
    )
    parser.add_argument("key", nargs="?", default="", metavar="KEY", help="a setting, or what its name begins with")
    parser.add_argument("--agent", metavar="NAME", help="only settings that this agent has")
    parser.add_argument("--json", action="store_true", help="print them as JSON")


def run(arguments: argparse.Namespace) -> None:
    """Print them."""
    from rltransformers.cli.settings import catalogue, find_settings
    from rltransformers.core.extensions import load_installed

    load_installed()
    found = find_settings(arguments.key, arguments.agent)
    if arguments.json:
        print_json([asdict(each) for each in found])
        return
    for each in found:
        whose = ""
        if each.of:
            whose = f"  (of {each.of})"
        elif each.agents and arguments.agent is None and len(each.agents) < len(catalogue()["agents"]):
            whose = f"  ({', '.join(each.agents)})"
        print(f"{each.key}{whose}")
        default = each.default if each.default == "required" else f"default {each.default}"
        lines = [f"{each.says}.", f"{each.accepts}; {default}"]
        if any(name not in each.accepts for name in each.names):
            lines.append(f"one of {', '.join(each.names)}")
        for line in lines:
            print(textwrap.fill(line, 116, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False))
