"""``rltransformers show``: print a config as training would take it."""

import argparse

from rltransformers.cli.words import Parsers, add_config, command


def add(commands: Parsers) -> None:
    """Its options and help."""
    parser = command(
        commands,
        "show",
        "Print a config as training would take it.",
        """
CONFIG and the settings behind it are those of `rltransformers train`; nothing is trained or written. What is printed is
YAML with every setting of a run, defaults included (those of the agent and of the backbone stay out: `rltransformers
settings` has them):

  rltransformers show gtrxl_cue_recall
  rltransformers show gtrxl_cue_recall --seed 1 --backbone.memory 0 > mine.yaml
  rltransformers show --env CartPole-v1 --agent gtrxl_vmpo > cartpole.yaml
""",
    )
    add_config(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Print it."""
    import yaml

    from rltransformers.cli.configs import read_config

    print(yaml.safe_dump(read_config(arguments)[1].to_dict(), sort_keys=False), end="")
