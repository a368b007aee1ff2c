"""``rltransformers tune``: search settings with Optuna."""

import argparse
import shlex
from contextlib import closing

from rltransformers.cli.printing import cell, print_json
from rltransformers.cli.words import Parsers, add_config, add_engine, add_trust, command, flag, jobs_of
from rltransformers.core.errors import ConfigError
from rltransformers.core.files import check_name
from rltransformers.core.ranges import Count


def add(commands: Parsers) -> None:
    """Its options and help."""
    parser = command(
        commands,
        "tune",
        "Search settings of a run with Optuna.",
        """
CONFIG, --env and all settings are those of `rltransformers train`. What is searched stands in the config under
tune.search, or is given with --search, once per setting: a range low..high, a range low..high:log on a log scale (whole
numbers where both ends are), or a list of values. What is the same in all trials cannot be searched: agent, seed,
output, threads and evaluation.*.

  rltransformers tune gtrxl_cue_recall --trials 20 --search algorithm.learning_rate=1e-5..1e-2:log \\
      --search backbone.memory=16..64 --search "backbone.position=[trxl, rope]"

Every trial is a run in a process and a folder of its own, inside runs/<config>-tune; --jobs 4 trains four at the same
time, --engine ray on the machines of a Ray cluster. Its score is the mean return of the final
evaluation (over target returns: the highest). With evaluation.every, a trial whose best evaluation so far lies below
the median of those that came to their end, once these are five, is stopped early. runs/<config>-tune/study.db holds the
study: the same command goes on with it, a larger --trials makes it longer. runs/<config>-tune/best.yaml is the config
of the best trial. Needs pip install 'rltransformers[tune]'.
""",
    )
    add_config(parser)
    parser.add_argument(
        "--search", action="append", default=[], metavar="KEY=VALUES", help="a setting and what it may be; repeatable"
    )
    parser.add_argument(
        "--trials", type=flag(Count), metavar="N", help="trials in all (default: of the config, else 20)"
    )
    add_engine(parser, "", "trials")
    parser.add_argument("--name", help="name of the folder in place of <config>-tune")
    parser.add_argument("--json", action="store_true", help="print the best trial and all others as JSON")
    add_trust(parser)


def run(arguments: argparse.Namespace) -> None:
    """Search, and print the best trial."""
    from rltransformers.cli import trust
    from rltransformers.cli.configs import read_config
    from rltransformers.cli.space import read_space
    from rltransformers.core.yaml_text import parse_yaml
    from rltransformers.training.runs.experiment import TuneConfig, read_experiment

    searched: dict[str, str] = {}
    for text in arguments.search:
        key, equals, values = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"--search takes KEY=VALUES, as algorithm.learning_rate=1e-5..1e-2:log; got {text!r}")
        if key in searched:
            raise ConfigError(f"--search {key} is given twice, as {searched[key]} and as {values}; give it once")
        searched[key] = values
    stem, config, typed = read_config(arguments)
    check_name(name := f"{stem}-tune" if arguments.name is None else arguments.name)
    trust.require_trust(trust.not_typed(trust.programs(config), typed), str(arguments.config), arguments.trust)
    settings = config.tune or TuneConfig()
    space = settings.search | {key: parse_yaml(text, f"--search {key}") for key, text in searched.items()}
    base = config.to_dict() | {"tune": None}
    search = read_space(base, space, searched, arguments.trust)  # what is wrong is told before torch is imported
    from rltransformers.cli.engines import engine_of
    from rltransformers.cli.tuning import as_text, tune

    with closing(engine_of(arguments.engine, arguments.address)) as engine:
        trials, jobs = arguments.trials or settings.trials, jobs_of(arguments)
        summary = tune(name, base, space, search, engine, jobs, trials)
    if arguments.json:
        print_json(summary)
        return
    print(f"{'trial':>6}  {'state':<9} {'score':>10}  settings")
    for trial in summary["trials"]:
        score = "" if trial["score"] is None else cell(trial["score"])
        print(f"{trial['number']:>6}  {trial['state']:<9} {score:>10}  {as_text(trial['settings'])}")
    print(f"\nbest trial   {summary['best']['number']}, score {cell(summary['best']['score'])}")
    print(f"its config   {summary['config']}")
    foreign = trust.programs(read_experiment(summary["config"]))
    own_words = not trust.not_typed(foreign, [*typed, *searched.items()])  # nobody is told to trust what others wrote
    trusted = " --trust" if foreign and own_words else ""
    print(f"train again  rltransformers train {shlex.quote(summary['config'])} --seeds 5{trusted}")
