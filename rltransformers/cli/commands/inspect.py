"""``rltransformers inspect``: check a dataset and describe it."""

import argparse

from rltransformers.cli.printing import print_json, print_tree
from rltransformers.cli.words import Parsers, command


def add(commands: Parsers) -> None:
    """Its options and help."""
    parser = command(
        commands,
        "inspect",
        "Check a dataset and describe it.",
        """
DATASET is a Minari id (installed on this machine), a D4RL HDF5 file, or a folder of saved trajectories. It is read and
checked as training would: shapes, NaN, lengths, flags. Printed are spaces, episodes, lengths and returns.

  rltransformers inspect hopper/mixture-v0
  rltransformers inspect hopper_medium-v2.hdf5 --json
""",
    )
    parser.add_argument("dataset", metavar="DATASET", help="Minari id or path")
    parser.add_argument("--json", action="store_true", help="print the description as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Do it, and print what came of it."""
    from rltransformers.data import load_trajectories, normalized_score

    data = load_trajectories(arguments.dataset)
    summary = data.summary()
    scores = normalized_score(data.env_id or data.name, data.returns)
    if scores is not None:
        summary["normalized_score_mean"] = float(scores.mean())
    if arguments.json:
        print_json(summary)
    else:
        print_tree(summary)
