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
CONFIG and the settings after it are those of `rltransformers train`, and are checked in the same way as far as this is
possible without the environment and the data. Nothing is trained or written. The output is YAML with every setting of
the run, defaults included; `rltransformers settings` has those of the agent and the backbone.

  rltransformers show gtrxl_cue_recall
  rltransformers show gtrxl_cue_recall --seed 1 --backbone.memory 0 > mine.yaml
  rltransformers show --env CartPole-v1 --agent gtrxl_vmpo > cartpole.yaml
""",
    )
    add_config(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print it."""

    from rltransformers.cli.configs import packaged_configs, read_config
    from rltransformers.cli.values import check_values
    from rltransformers.core.yaml_text import yaml_of

    _, config, typed = read_config(arguments)
    check_values(config)
    if typed or arguments.config not in packaged_configs():  # one that comes with the package is right, and torch slow
        from rltransformers.cli.keywords import check_config

        check_config(config)
    print(yaml_of(config.to_dict()), end="")
