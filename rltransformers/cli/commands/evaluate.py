"""``rltransformers evaluate``: play episodes with a trained agent."""

import argparse
import sys

from rltransformers.cli.printing import print_json, print_results
from rltransformers.cli.words import Parsers, add_episodes, command, flag, mapping
from rltransformers.core.errors import ConfigError
from rltransformers.core.files import check_run
from rltransformers.core.ranges import Episodes


def add(commands: Parsers) -> None:
    """Its options and help."""
    parser = command(
        commands,
        "evaluate",
        "Evaluate a trained agent.",
        """
RUN is a run folder made by `rltransformers train`. Every episode has a seed that follows from SEED, so results of two
agents are comparable episode by episode. Printed are mean, standard deviation, interquartile mean with its 95 %
bootstrap interval over episodes, episode length, and success rate and normalized score where they are defined.

For a decision_transformer with algorithm.validation and dataset.id, the errors on the held-out episodes are printed as
well: for each component of the action those of the policy, of the mean action (or most frequent class) and of behavior
cloning with one step. This needs no environment; if the run has none that can be made here, nothing else is printed.

  rltransformers evaluate runs/gtrxl_cue_recall-seed0 --episodes 100
  rltransformers evaluate runs/gtrxl_cue_recall-seed0 --env-kwargs '{"delay": 20}'
  rltransformers evaluate runs/gtrxl_minigrid_memory-seed0 --env MiniGrid-MemoryS17Random-v0
  rltransformers evaluate runs/dt_hopper_mixture-seed0 --target-return 700 --target-return 2400 --plot target
  rltransformers evaluate runs/gtrxl_cartpole_masked-seed0 --episodes 3 --video videos --videos 3
""",
    )
    argument = parser.add_argument
    argument("folder", metavar="RUN", help="run folder")
    add_episodes(parser, "of the config")
    argument(
        "--acting", choices=("eager", "compiled"), help="how steps are computed (default: as the agent was trained)"
    )
    argument(
        "--plot",
        action="append",
        choices=("target", "lookback"),
        default=[],
        help="write a picture into RUN: return against target return, or how far back attention looks; repeatable",
    )
    argument(
        "--video", metavar="FOLDER", help="write videos (mp4) of the first episodes there, which are played one by one"
    )
    argument("--videos", type=flag(Episodes), metavar="N", help="episodes in --video, per target return (default: 1)")
    argument("--json", action="store_true", help="print all episodes and the summary as JSON")


def run(arguments: argparse.Namespace) -> None:
    """Do it, and print what came of it."""
    if arguments.videos is not None and arguments.video is None:
        raise ConfigError("--videos says how many episodes --video FOLDER records: give --video, too")
    env_kwargs = mapping(arguments.env_kwargs, "--env-kwargs")
    check_run(arguments.folder)  # what is wrong is told before torch is imported
    from rltransformers.cli import runs

    results, validation, pictures = runs.evaluate(arguments, env_kwargs)
    if arguments.json:
        values = [result.to_dict() for result in results]
        print_json(values if validation is None else {"results": values, "validation": validation.to_dict()})
    else:
        print_results(results, validation)
    for picture in pictures:
        print(f"{'video' if picture.suffix == '.mp4' else 'picture'}  {picture}", file=sys.stderr)
