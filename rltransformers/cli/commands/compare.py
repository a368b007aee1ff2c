"""``rltransformers compare``: statistics, curves and CSV of runs that are done or running."""

import argparse
from pathlib import Path

from rltransformers.cli.printing import print_json
from rltransformers.cli.words import Parsers, command
from rltransformers.core.errors import ConfigError


def add(commands: Parsers) -> None:
    """Its options and help."""
    parser = command(
        commands,
        "compare",
        "Compare runs: a table with intervals over seeds, curves, CSV.",
        """
RUN is a run folder, a folder of run folders, or a pattern. Runs are grouped by what differs in their configs, seed
aside; the group of the first run is what the others are compared with. Of every group the table has the number of
seeds, the interquartile mean (IQM) of the last evaluation with its 95 % bootstrap interval over seeds, the IQM of the
best evaluations, the probability that one of its runs is better than one of the first group, and medians of steps, time
and steps per second. Runs that are not finished are named with the step they reached, and count where a group has no
others. Runs with a damaged file are named and left out; where all are damaged the exit code is 2.

  rltransformers compare runs/gtrxl_cue_recall-seed* runs/memoryless-seed*
  rltransformers compare runs/cue-sweep --plot curves.png --by seconds --csv curves.csv
  rltransformers compare runs/cue-sweep --metric eval/success_rate --json
""",
    )
    parser.add_argument("places", nargs="+", metavar="RUN", help="run folder, folder of run folders, or pattern")
    parser.add_argument(
        "--metric",
        metavar="NAME",
        help="column of progress.csv, as eval/success_rate (default: mean return; without an environment action loss)",
    )
    parser.add_argument("--plot", metavar="FILE.png", help="draw the curves: IQM over seeds and its interval")
    parser.add_argument(
        "--by", choices=("steps", "seconds", "updates"), help="the x-axis of the curves (default: steps)"
    )
    parser.add_argument(
        "--csv", metavar="FILE.csv", help="write every evaluation of every run, and the table as FILE-groups.csv"
    )
    parser.add_argument("--json", action="store_true", help="print the table as JSON")


def run(arguments: argparse.Namespace) -> None:
    """Print the table, and write what is asked for."""
    if arguments.by is not None and arguments.plot is None:
        raise ConfigError(f"--by {arguments.by} is the x-axis of a picture: give --plot FILE.png, too")
    from rltransformers.training.runs.comparison import check_picture_name, compare

    if arguments.plot is not None:
        check_picture_name(arguments.plot)
    if arguments.csv is not None and Path(arguments.csv).suffix != ".csv":
        raise ConfigError(f"--csv {arguments.csv} must end in .csv")
    comparison = compare(arguments.places, metric=arguments.metric)
    if arguments.json:
        print_json({"groups": comparison.summary(), "notes": list(comparison.notes)})
    else:
        print(comparison)
    written = []
    if arguments.plot is not None:
        comparison.plot(arguments.plot, arguments.by or "steps")
        written.append(arguments.plot)
    if arguments.csv is not None:
        written += comparison.write_csv(arguments.csv)
    if written and not arguments.json:
        print()
        for path in written:
            print(f"written  {path}")
