"""``rltransformers suite``: run a suite of results, and write its CSV, tables and pictures."""

import argparse
import sys

from rltransformers.cli.words import Parsers, add_engine, add_trust, command, flag
from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import Count


def add(commands: Parsers) -> None:
    """Its options and help."""
    parser = command(
        commands,
        "suite",
        "Run a suite of results (tasks x variants x seeds), and write its CSV, tables and pictures.",
        """
SUITE is a YAML file, or the name of a suite that comes with the package; without it all of them are listed. Runs that
stand in the CSV are skipped, killed ones go on from their last checkpoint: the same command goes on. Inside a checkout
results go to docs/results and run folders to runs/results; elsewhere to results/SUITE and results/SUITE/runs.

  rltransformers suite
  rltransformers suite online --dry-run
  rltransformers suite online --only cue_recall_16/GTrXL --seeds 1 --results again
  rltransformers suite online --engine ray --address auto
""",
    )
    parser.add_argument("suite", nargs="?", metavar="SUITE", help="name of a suite, or a YAML file; default: list them")
    parser.add_argument("--seeds", type=flag(Count), metavar="N", help="seeds per variant (default: as the suite says)")
    add_engine(parser, "", "runs", "the cores")
    parser.add_argument(
        "--only", nargs="+", action="extend", default=[], metavar="TASK[/VARIANT]", help="leave out others"
    )
    parser.add_argument(
        "--results",
        metavar="DIR",
        help="for CSV, tables and pictures; in a checkout runs that go elsewhere are compared with published ones",
    )
    parser.add_argument("--runs", metavar="DIR", help="for run folders (default with --results DIR: DIR/runs)")
    parser.add_argument("--behaviors", metavar="DIR", help="trained policies that missing datasets are recorded from")
    parser.add_argument("--dry-run", action="store_true", help="say what would run, and stop")
    parser.add_argument("--report", action="store_true", help="run nothing; tables and pictures anew from the CSV")
    add_trust(parser)


def run(arguments: argparse.Namespace) -> None:
    """Run it, or list all."""
    if arguments.suite is None:
        from rltransformers.cli.configs import packaged_suites

        suites = packaged_suites()
        for name, title in suites.items():
            print(f"{name:<{max(map(len, suites))}}  {title}")
        return
    if arguments.report and arguments.dry_run:
        raise ConfigError("--report runs nothing, and writes pages and pictures; leave --dry-run out")
    from rltransformers.zoo.reproduce import reproduce

    names = ("seeds", "only", "results", "runs", "behaviors", "trust", "jobs", "engine", "address", "dry_run")
    options = {name: getattr(arguments, name) for name in names}
    try:
        failed = reproduce(arguments.suite, report_only=arguments.report, **options)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        raise
    if failed:
        raise ConfigError(f"{failed} of the runs failed, see above; the same command tries them again")
