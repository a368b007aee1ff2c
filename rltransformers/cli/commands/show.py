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
CONFIG and the settings behind it are those of `rltransformers train`, which are refused as there as far as that shows
without the environment and the data; nothing is trained or written. What is printed is
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

    from rltransformers.cli.configs import packaged_configs, read_config
    from rltransformers.cli.values import check_values

    _, config, typed = read_config(arguments)
    check_values(config)
    if typed or arguments.config not in packaged_configs():  # one that comes with the package is right, and torch slow
        from rltransformers.cli.keywords import check_config

        check_config(config)
    print(yaml.safe_dump(config.to_dict(), sort_keys=False), end="")
