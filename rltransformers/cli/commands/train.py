"""``rltransformers train``: train an agent, once or with several seeds."""

import argparse
import shlex
from contextlib import closing
from pathlib import Path

from rltransformers.cli.printing import print_json, print_results
from rltransformers.cli.words import Parsers, add_config, add_engine, add_trust, command, flag, jobs_of
from rltransformers.core.errors import ConfigError
from rltransformers.core.files import check_name, check_run
from rltransformers.core.ranges import Count, Seed, check
from rltransformers.training.runs.experiment import ExperimentConfig


def add(commands: Parsers) -> None:
    """Its options and help."""
    parser = command(
        commands,
        "train",
        "Train an agent from a config, or in an environment with default settings.",
        """
CONFIG is a YAML file, or the name of a config that comes with the package (`rltransformers list` prints them).
Any setting in it can be changed on the command line with its dotted name:

  rltransformers train gtrxl_cue_recall
  rltransformers train configs/gtrxl_cue_recall.yaml --seed 1 --algorithm.learning_rate 3e-4 --backbone.memory 0

Without a config, --env names the environment; --agent and every other setting may follow:

  rltransformers train --env CartPole-v1 --agent gtrxl_vmpo --train.total_timesteps 50000

Several seeds, each in a run folder of its own, with mean and spread at the end:

  rltransformers train gtrxl_cue_recall --seeds 5 --jobs 2
  rltransformers train gtrxl_cue_recall --seeds 5 --engine ray --address auto

All combinations of settings, each with N seeds, in the folder runs/<config>-sweep, with the table of `rltransformers
compare` at the end. The same command goes on with runs that were stopped and skips those that are finished:

  rltransformers train gtrxl_cue_recall --sweep backbone.mixer=softmax,linear --sweep backbone.memory=8,32 --seeds 3
  rltransformers train gtrxl_cue_recall --variants variants.yaml --seeds 3

Settings (`rltransformers settings` explains each, `rltransformers settings algorithm` those that begin so):
  agent, seed, output     which agent, the seed of everything, the folder for run folders
  imports                 modules that register mechanisms of your own
  environment.*           id, num_envs, kwargs, wrappers, processes, normalize_observation, normalize_reward,
                          novelty_bonus, novelty_steps
  dataset.*               id, time_limit, split_on_discontinuity, cache, observation_space, action_space,
                          observation_leaves and columns, or collect.episodes and
                          collect.behaviors (decision_transformer)
  backbone.*              preset and what `rltransformers list` shows
  algorithm.*, policy.*   keywords of the agent and of its policy
  train.*                 total_timesteps, or gradient_steps (decision_transformer); restart_every (gtrxl_*)
  online.*                timesteps, exploration_return, exploration_noise, replay_episodes, updates_per_episode,
                          num_envs: episodes that a decision_transformer plays and learns from in the end
  evaluation.*            episodes, every, target_returns, seed, deterministic, kwargs, longest_episode; patience
                          (decision_transformer)
  tune.*                  search, trials: for `rltransformers tune`
  threads                 threads of torch (default: 1, or OMP_NUM_THREADS where it is set)
  tracker                 wandb or mlflow: log there, too (default: neither)

A run folder runs/<config>-seed<seed> receives the resolved config, metrics (CSV and TensorBoard), checkpoints
(last.zip, best.zip), the final evaluation (evaluation.json) and a learning curve (learning_curve.png).

A decision_transformer learns from a file alone where it holds some of its episodes out (algorithm.validation): leave
`environment` out of the config, or name the data in place of it:

  rltransformers train --agent decision_transformer --dataset.id logs.parquet --train.gradient_steps 5000

A run that was stopped goes on with:

  rltransformers train --resume runs/gtrxl_cue_recall-seed0

Several processes train one agent under torchrun, each with its part of environment.num_envs and of every batch:

  torchrun --nproc-per-node 4 -m rltransformers train gtrxl_cue_recall
""",
    )
    add_config(parser)
    parser.add_argument("--resume", metavar="RUN", help="run folder to go on with, in place of CONFIG")
    parser.add_argument(
        "--name", help="name of the run folder in place of <config>-seed<seed>, of a sweep in place of <config>-sweep"
    )
    parser.add_argument(
        "--seeds", type=flag(Count), metavar="N", help="train with N seeds, from the config's on, and compare the runs"
    )
    parser.add_argument(
        "--sweep", action="append", default=[], metavar="KEY=V1,V2", help="train with each of these values; repeatable"
    )
    parser.add_argument(
        "--variants", metavar="FILE.yaml", help="train each variant of a file: name -> settings, as in a suite"
    )
    add_engine(parser, "with several runs: ", "runs")
    parser.add_argument("--verbose", action="store_true", help="print every logged metric in place of a progress bar")
    parser.add_argument("--json", action="store_true", help="print the final evaluation as JSON")
    add_trust(parser)


def run(arguments: argparse.Namespace) -> None:
    """Train, and print the final evaluation."""
    from rltransformers.cli import trust
    from rltransformers.cli.configs import packaged_configs, read_config
    from rltransformers.cli.values import check_values
    from rltransformers.training.runs.experiment import read_experiment

    _check(arguments, packaged_configs())
    if _sweeps(arguments):
        _train_variants(arguments)
        return
    if arguments.resume is None:
        name, config, typed = read_config(arguments)
        check_values(config)
        foreign = trust.not_typed(trust.programs(config), typed)
        trust.require_trust(foreign, str(arguments.config), arguments.trust)
        if arguments.seeds is not None:
            _train_seeds(arguments, name, config)
            return
    else:  # what is wrong is told before torch is imported
        check_run(arguments.resume)
        stored = Path(arguments.resume) / "config.yaml"
        read_experiment(stored)  # alone: overrides may stand for what is cut off
        config = read_experiment(stored, arguments.overrides)
        trust.import_modules(config.imports, arguments.resume, arguments.trust)
        check_values(config)
    from rltransformers.cli import runs
    from rltransformers.core.world import join

    with join() as sharing:
        if arguments.resume is not None:
            folder, results = runs.resume(arguments.resume, arguments.overrides, arguments.verbose, arguments.trust)
        else:
            folder, results = runs.train(arguments.name or f"{name}-seed{config.seed}", config, arguments.verbose)
    if not sharing.is_leader:
        return
    validation = folder.entries()[-1].validation
    if arguments.json:
        values = {"run": str(folder.path), "results": [result.to_dict() for result in results]}
        print_json(values if validation is None else values | {"validation": validation.to_dict()})
        return
    print_results(results, validation)
    print(f"\nrun folder      {folder.path}")
    if folder.learning_curve.is_file():
        print(f"learning curve  {folder.learning_curve}")
    if results:
        print(f"evaluation      {folder.evaluation}")
    if validation is not None:
        print(f"validation      {folder.validation}")
    foreign = trust.programs(read_experiment(folder.config), folder.last, training=False)
    trusted = " --trust" if foreign else ""
    episodes = " --episodes 100" if results else ""
    print(f"evaluate again  rltransformers evaluate {shlex.quote(str(folder.path))}{episodes}{trusted}")


def _check(arguments: argparse.Namespace, names: list[str]) -> None:
    from rltransformers.cli.configs import names_data

    given = [each for each in (arguments.config, arguments.env, arguments.resume) if each is not None]
    if len(given) != 1 and (given or not names_data(arguments.overrides)):
        raise ConfigError(
            "train needs either CONFIG or --resume RUN or --env ID, one of the three (with a CONFIG: --environment.id "
            f"ID), or --dataset.id alone; packaged configs: {', '.join(names)}"
        )
    if arguments.name is not None:
        if arguments.resume is not None:
            raise ConfigError(
                "--name is for a new run, --resume goes on in the folder that it names: leave one of the two out"
            )
        check_name(arguments.name)
    for flag_name, default in (("jobs", None), ("engine", "local"), ("address", None)):
        if getattr(arguments, flag_name) != default and arguments.seeds is None and not _sweeps(arguments):
            raise ConfigError(f"--{flag_name} says how several seeds are trained: give --seeds N, too")
    several = "--seeds" if arguments.seeds is not None else "--sweep" if arguments.sweep else "--variants"
    for flag_name in ("resume", "verbose"):
        if (arguments.seeds is not None or _sweeps(arguments)) and getattr(arguments, flag_name):
            raise ConfigError(f"--{flag_name} is for one run, {several} for several new ones: leave one of the two out")


def _sweeps(arguments: argparse.Namespace) -> bool:
    return bool(arguments.sweep) or arguments.variants is not None


def _train_variants(arguments: argparse.Namespace) -> None:
    from rltransformers.cli.configs import read_config
    from rltransformers.cli.variants import read_variants

    stem, base, _ = read_config(arguments)
    check_name(name := arguments.name or f"{stem}-{Path(arguments.variants).stem if arguments.variants else 'sweep'}")
    variants = read_variants(arguments)
    seeds = _seeds(base, arguments.seeds or 1)
    for variant in variants:
        if (variant.seeds or 0) > len(seeds):
            raise ConfigError(f"variant {variant.name} has {variant.seeds} seeds: give --seeds {variant.seeds} or more")
    from rltransformers.cli.engines import engine_of
    from rltransformers.cli.sweep import train_variants

    with closing(engine_of(arguments.engine, arguments.address)) as engine:
        comparison, failed = train_variants(name, variants, seeds, engine, jobs_of(arguments), arguments.trust)
    if arguments.json:
        print_json({"groups": comparison.summary(), "notes": list(comparison.notes)})
    else:
        print(comparison)
        folders = comparison.groups[0].runs[0].path, Path(base.output) / name  # the same first group
        print(f"\ncompare again  rltransformers compare {shlex.join(map(str, folders))}")
    if failed:
        raise ConfigError(f"{failed} failed, see above; the same command tries again")


def _train_seeds(arguments: argparse.Namespace, name: str, config: ExperimentConfig) -> None:
    from rltransformers.cli.engines import engine_of
    from rltransformers.cli.seeds import print_seeds, seeds_summary, train_seeds

    seeds = _seeds(config, arguments.seeds)
    with closing(engine_of(arguments.engine, arguments.address)) as engine:
        runs = train_seeds(config, arguments.name or name, seeds, engine, jobs_of(arguments))
    if arguments.json:
        print_json({"runs": runs, "seeds": seeds_summary(runs)})
    else:
        print_seeds(runs)


def _seeds(config: ExperimentConfig, count: int) -> range:
    seeds = range(config.seed, config.seed + count)
    check(seeds[-1], Seed, f"the last of {len(seeds)} seeds from {config.seed} on")  # before the first one is trained
    return seeds
