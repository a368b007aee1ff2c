"""``rltransformers export``: write a policy to a file that runs without this package."""

import argparse

from rltransformers.cli.words import Parsers, command, flag
from rltransformers.core.ranges import Count


def add(commands: Parsers) -> None:
    """Its options and help."""
    parser = command(
        commands,
        "export",
        "Write the policy of a trained agent to a file that runs without this package.",
        """
RUN is a run folder made by `rltransformers train` (its last.zip is taken), or a checkpoint. The file takes observations
as the environment gives them and gives actions as it takes them; statistics of normalized observations are inside. How
to act with one: docs/online/acting.md, docs/offline/acting.md, examples/act_with_onnx.py.

  rltransformers export runs/gtrxl_cue_recall-seed0 --format onnx
  rltransformers export runs/gtrxl_cue_recall-seed0/best.zip --format pt2 --batch 1 --output policy.pt2
""",
    )
    argument = parser.add_argument
    argument("run_or_checkpoint", metavar="RUN", help="run folder or checkpoint")
    argument("--format", choices=("pt2", "onnx"), required=True, help="pt2: for torch; onnx: for any ONNX runtime")
    argument("--batch", type=flag(Count), metavar="N", help="environments that the file is for (default: any number)")
    argument(
        "--acting-mode",
        choices=("refresh", "banded"),
        help="of a Decision Transformer: what happens when an episode outgrows the context (default: as in training)",
    )
    argument("--output", metavar="PATH", help="file to write (default: beside the checkpoint, with another ending)")


def run(arguments: argparse.Namespace) -> None:
    """Do it, and print what came of it."""
    from rltransformers.cli import runs

    print(runs.export(arguments))
