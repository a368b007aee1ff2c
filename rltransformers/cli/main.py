"""The command ``rltransformers``: train, show, evaluate, export, collect, list, inspect."""

import argparse
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, NoReturn

from rltransformers import __version__
from rltransformers.core.errors import OUR_ERRORS, ConfigError
from rltransformers.core.files import naming, refusal
from rltransformers.core.ranges import Count, Environments, Episodes, Seed, Steps, Threads, WholeNumber, describe, fits

_TRAIN_FLAGS = ("--resume", "--name", "--verbose", "--json", "--debug", "--help", "--trust")
Parsers = Any  # argparse keeps the type of its sub-parsers private


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 2 refused with a reason, 128 + N ended by signal N."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    report_thread, threading.excepthook = threading.excepthook, _report_thread
    try:
        overrides: list[tuple[str, str]] = []
        if words[:1] in (["train"], ["show"]):
            words, overrides = split_overrides(words)
        arguments = build_parser().parse_args(words)
        arguments.overrides = overrides
        command: Callable[[argparse.Namespace], None] = arguments.run
        command(arguments)
        with naming("standard output"):
            sys.stdout.flush()
    except OUR_ERRORS as error:
        if debug:
            raise
        rank = os.environ.get("RANK")
        print(f"rltransformers{'' if rank is None else f' (process {rank})'}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interruption:
        return 128 + getattr(interruption, "signum", signal.SIGINT)
    except BrokenPipeError:  # whoever read our output has left, as `head` does
        _silence()
    except OSError as error:  # a full disk, a folder that must not be written to
        if debug:
            raise
        print(f"rltransformers: {refusal(error)}", file=sys.stderr)
        if error.filename in (None, "standard output"):
            _silence()
        return 2
    finally:
        threading.excepthook = report_thread
    return 0


def _report_thread(failure: threading.ExceptHookArgs) -> None:
    """Errors of threads, but for those of the operating system: TensorBoard's writer raises them again in ours."""
    if not issubclass(failure.exc_type, OSError):
        threading.__excepthook__(failure)


def _silence() -> None:
    """Drop what is left of the output, which nobody takes; Python must not complain about it when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Parser(argparse.ArgumentParser):
    """argparse with our errors: one line, without the usage in front."""

    def error(self, message: str) -> NoReturn:
        """Raise in place of printing and leaving."""
        raise ConfigError(re.sub(r"^argument (\S+): must be", r"\1 must be", message))


def flag(annotation: Any) -> Callable[[str], Any]:
    """What reads the text of a flag as a number of this type and range."""

    def read(text: str) -> Any:
        try:
            value: Any = int(text)
        except ValueError:
            try:
                value = float(text)
            except ValueError:
                value = text
        if fits(value, annotation):
            return value
        raise argparse.ArgumentTypeError(f"must be {describe(annotation)}, got {text!r}")

    return read


def build_parser() -> argparse.ArgumentParser:
    """All commands with their help."""
    parser = Parser(
        prog="rltransformers",
        description="Train and evaluate transformers for sequential decisions: GTrXL policies, Decision Transformers.",
        epilog="`rltransformers COMMAND --help` explains a command and shows an example.",
    )
    parser.add_argument("--version", action="version", version=f"rltransformers {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (_add_train, _add_show, _add_evaluate, _add_export, _add_collect, _add_list, _add_inspect):
        command = add(commands)
        command.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def split_overrides(words: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """The words that argparse should see, and pairs (dotted key, text) from all other ``--key value``, ``--key=value``.

    Raises:
        ConfigError: for a key without a value.
    """
    kept: list[str] = []
    overrides: list[tuple[str, str]] = []
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        key, separator, value = word.partition("=")
        if key in _TRAIN_FLAGS or not key.startswith("--"):
            kept.append(word)
            if key in ("--resume", "--name") and not separator and remaining:
                kept.append(remaining.pop(0))
            continue
        if not separator:
            if not remaining:
                raise ConfigError(f"{key} needs a value: {key} VALUE")
            value = remaining.pop(0)
        overrides.append((key[2:], value))
    return kept, overrides


# Train ------------------------------------------------------------------------------------------------------


def _add_train(commands: Parsers) -> argparse.ArgumentParser:
    parser = _command(
        commands,
        "train",
        "Train an agent from a config.",
        """
CONFIG is a YAML file, or the name of a config that comes with the package (`rltransformers list` prints them).
Any setting in it can be changed on the command line with its dotted name:

  rltransformers train gtrxl_cue_recall
  rltransformers train configs/gtrxl_cue_recall.yaml --seed 1 --algorithm.learning_rate 3e-4 --backbone.memory 0

Settings:
  agent, seed, output     which agent, the seed of everything, the folder for run folders
  environment.*           id, num_envs, kwargs, wrappers, processes, normalize_observation, normalize_reward
  dataset.*               id, or collect.episodes and collect.behaviours (decision_transformer)
  backbone.*              preset and what `rltransformers list` shows
  algorithm.*, policy.*   keywords of the agent and of its policy
  train.*                 total_timesteps, or gradient_steps (decision_transformer); restart_every (gtrxl_*)
  online.*                timesteps, exploration_return, exploration_noise, replay_episodes, updates_per_episode,
                          num_envs: episodes that a decision_transformer plays and learns from in the end
  evaluation.*            episodes, every, target_returns, seed, deterministic, kwargs, longest_episode
  threads                 threads of torch (default: 1, or OMP_NUM_THREADS where it is set)

A run folder runs/<config>-seed<seed> receives the resolved config, metrics (CSV and TensorBoard), checkpoints
(last.zip, best.zip), the final evaluation (evaluation.json) and a learning curve (learning_curve.png).
A run that was stopped goes on with:

  rltransformers train --resume runs/gtrxl_cue_recall-seed0

Several processes train one agent under torchrun, each with its part of environment.num_envs and of every batch:

  torchrun --nproc-per-node 4 -m rltransformers train gtrxl_cue_recall
""",
    )
    parser.add_argument("config", nargs="?", metavar="CONFIG", help="YAML file or name of a packaged config")
    parser.add_argument("--resume", metavar="RUN", help="run folder to go on with, in place of CONFIG")
    parser.add_argument("--name", help="name of the run folder in place of <config>-seed<seed>")
    parser.add_argument("--verbose", action="store_true", help="print every logged metric in place of a progress bar")
    parser.add_argument("--json", action="store_true", help="print the final evaluation as JSON")
    _add_trust(parser)
    parser.set_defaults(run=_train)
    return parser


def _train(arguments: argparse.Namespace) -> None:
    from rltransformers.cli import runs, trust
    from rltransformers.core.world import join
    from rltransformers.training.experiment import read_experiment

    if (arguments.config is None) == (arguments.resume is None):
        raise ConfigError(
            f"train needs either CONFIG or --resume RUN; packaged configs: {', '.join(runs.packaged_configs())}"
        )
    with join() as world:
        if arguments.resume is not None:
            folder, results = runs.resume(arguments.resume, arguments.overrides, arguments.verbose, arguments.trust)
        else:
            name, config = runs.find_config(arguments.config, arguments.overrides)
            foreign = trust.not_typed(trust.programs(config), arguments.overrides)
            trust.require_trust(foreign, arguments.config, arguments.trust)
            folder, results = runs.train(arguments.name or f"{name}-seed{config.seed}", config, arguments.verbose)
    if not world.leads:
        return
    if arguments.json:
        _print_json({"run": str(folder.path), "results": [result.to_dict() for result in results]})
        return
    _print_results(results)
    print(f"\nrun folder      {folder.path}")
    print(f"learning curve  {folder.learning_curve}")
    print(f"evaluation      {folder.evaluation}")
    flag = trust.trust_flag(trust.programs(read_experiment(folder.config), folder.last, training=False))
    print(f"evaluate again  rltransformers evaluate {folder.path} --episodes 100{flag}")


# Show -------------------------------------------------------------------------------------------------------


def _add_show(commands: Parsers) -> argparse.ArgumentParser:
    parser = _command(
        commands,
        "show",
        "Print a config as training would take it.",
        """
CONFIG and the settings behind it are those of `rltransformers train`; nothing is trained or written. What is printed is
YAML with every setting of a run, defaults included (those of the agent and of the backbone stay out):

  rltransformers show gtrxl_cue_recall
  rltransformers show gtrxl_cue_recall --seed 1 --backbone.memory 0 > mine.yaml
""",
    )
    parser.add_argument("config", metavar="CONFIG", help="YAML file or name of a packaged config")
    parser.set_defaults(run=_show)
    return parser


def _show(arguments: argparse.Namespace) -> None:
    import yaml

    from rltransformers.cli.runs import find_config

    config = find_config(arguments.config, arguments.overrides)[1]
    print(yaml.safe_dump(config.to_dict(), sort_keys=False), end="")


# Evaluate ---------------------------------------------------------------------------------------------------


def _add_evaluate(commands: Parsers) -> argparse.ArgumentParser:
    parser = _command(
        commands,
        "evaluate",
        "Evaluate a trained agent.",
        """
RUN is a run folder made by `rltransformers train`. Episode k starts from seed SEED + k, so results of two agents
are comparable episode by episode. Printed are mean, standard deviation, interquartile mean with its 95 % bootstrap
interval over episodes, episode length, and success rate and normalised score where they are defined.

  rltransformers evaluate runs/gtrxl_cue_recall-seed0 --episodes 100
  rltransformers evaluate runs/gtrxl_cue_recall-seed0 --env-kwargs '{"delay": 20}'
  rltransformers evaluate runs/dt_hopper_mixture-seed0 --target-return 700 --target-return 2400 --plot target
""",
    )
    parser.add_argument("folder", metavar="RUN", help="run folder")
    parser.add_argument(
        "--episodes",
        type=flag(Episodes),
        metavar="N",
        help="episodes, per target return (default: of the config)",
    )
    parser.add_argument(
        "--target-return",
        type=flag(float),
        action="append",
        default=[],
        metavar="R",
        help="return a Decision Transformer is asked for; repeat for several (default: of the config)",
    )
    parser.add_argument("--seed", type=flag(Seed), help="seed of the first episode (default: of the config)")
    parser.add_argument(
        "--env-kwargs", default="{}", metavar="JSON", help="keywords of the environment to change for this evaluation"
    )
    parser.add_argument(
        "--longest-episode",
        type=int,
        metavar="N",
        help="steps after which an episode that goes on is an error (default: of the config, else 200000)",
    )
    parser.add_argument(
        "--checkpoint",
        choices=("last", "best"),
        default="last",
        help="which weights (default: last, the honest choice)",
    )
    parser.add_argument(
        "--acting", choices=("eager", "compiled"), help="how steps are computed (default: as the agent was trained)"
    )
    _add_threads(parser, "of the config, else 1, or OMP_NUM_THREADS where it is set")
    parser.add_argument("--sample", action="store_true", help="sample actions instead of taking the most likely ones")
    parser.add_argument(
        "--plot",
        action="append",
        choices=("target", "lookback"),
        default=[],
        help="write a picture into RUN: return against target return, or how far back attention looks; repeatable",
    )
    parser.add_argument("--json", action="store_true", help="print all episodes and the summary as JSON")
    _add_trust(parser)
    parser.set_defaults(run=_evaluate)
    return parser


def _evaluate(arguments: argparse.Namespace) -> None:
    from rltransformers.cli import runs

    results, pictures = runs.evaluate(
        arguments.folder,
        arguments.episodes,
        arguments.target_return,
        arguments.seed,
        arguments.checkpoint,
        arguments.sample,
        arguments.plot,
        arguments.threads,
        _mapping(arguments.env_kwargs, "--env-kwargs"),
        arguments.longest_episode,
        arguments.trust,
        arguments.acting,
    )
    if arguments.json:
        _print_json([result.to_dict() for result in results])
    else:
        _print_results(results)
    for picture in pictures:
        print(f"picture  {picture}", file=sys.stderr)


# Export -----------------------------------------------------------------------------------------------------


def _add_export(commands: Parsers) -> argparse.ArgumentParser:
    parser = _command(
        commands,
        "export",
        "Write the policy of a trained agent to a file that runs without this package.",
        """
RUN is a run folder made by `rltransformers train` (its last.zip is taken), or a checkpoint. The file takes observations
as the environment gives them and gives actions as it takes them; statistics of normalised observations are inside. How
to act with one: docs/online.md, docs/offline.md, examples/act_with_onnx.py.

  rltransformers export runs/gtrxl_cue_recall-seed0 --format onnx
  rltransformers export runs/gtrxl_cue_recall-seed0/best.zip --format pt2 --batch 1 --output policy.pt2
""",
    )
    parser.add_argument("run_or_checkpoint", metavar="RUN", help="run folder or checkpoint")
    parser.add_argument(
        "--format", choices=("pt2", "onnx"), required=True, help="pt2: for torch; onnx: for any ONNX runtime"
    )
    parser.add_argument(
        "--batch", type=flag(Count), metavar="N", help="environments that the file is for (default: any number)"
    )
    parser.add_argument(
        "--output", metavar="PATH", help="file to write (default: beside the checkpoint, with another ending)"
    )
    parser.set_defaults(run=_export)
    return parser


def _export(arguments: argparse.Namespace) -> None:
    from rltransformers.cli import runs

    print(runs.export(arguments.run_or_checkpoint, arguments.format, arguments.batch, arguments.output))


# Collect ----------------------------------------------------------------------------------------------------


def _add_collect(commands: Parsers) -> argparse.ArgumentParser:
    parser = _command(
        commands,
        "collect",
        "Record behaviours as a dataset.",
        """
Runs behaviours in an environment and writes their episodes as a Minari dataset, which `train` reads by its id
(dataset.id) and `inspect` describes. A behaviour is written as one of

  random                                uniform actions
  sb3:ALGORITHM:ZIP[:VECNORMALIZE.pkl]  a Stable-Baselines3 or sb3-contrib policy (ppo, a2c, sac, td3, dqn, tqc, ...);
                                        such files are pickles and can run code: use only ones you trust
  checkpoint:RUN                        an agent trained with this package: a run folder or a checkpoint in it
  MODULE:NAME                           a function or class of yours

Several behaviours make a mixture; =WEIGHT behind one sets its share of the steps. With --keep-indices or
--drop-indices only a part of a vector observation is recorded, while the behaviour sees all of it.

  rltransformers collect --env rltransformers/KeyToDoor-v0 --behaviour random --steps 20000 --dataset key/random-v0
  rltransformers collect --env Hopper-v5 --behaviour sb3:sac:sac.zip=1 --behaviour random=2 --steps 100000 \\
      --dataset hopper/mixture-v0 --num-envs 8
""",
    )
    parser.add_argument("--env", required=True, metavar="ID", help="Gymnasium id")
    parser.add_argument(
        "--env-kwargs", default="{}", metavar="JSON", help='keywords of the environment, as {"delay": 16}'
    )
    parser.add_argument(
        "--behaviour", action="append", required=True, metavar="SPEC[=WEIGHT]", help="who acts; repeat for a mixture"
    )
    parser.add_argument(
        "--steps", type=flag(Steps), required=True, metavar="N", help="steps; running episodes are finished"
    )
    parser.add_argument("--dataset", required=True, metavar="NAME-vN", help="id of the new Minari dataset")
    parser.add_argument(
        "--num-envs",
        type=flag(Environments),
        default=8,
        metavar="N",
        help="environments at once (default: 8)",
    )
    parser.add_argument("--seed", type=flag(Seed), default=0, help="same seed, same dataset (default: 0)")
    _add_threads(parser, "1, or OMP_NUM_THREADS where it is set")
    parser.add_argument("--deterministic", action="store_true", help="most likely actions in place of sampled ones")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing dataset of that id")
    part = parser.add_mutually_exclusive_group()
    part.add_argument(
        "--keep-indices", type=flag(WholeNumber), nargs="+", metavar="I", help="record only these observation entries"
    )
    part.add_argument(
        "--drop-indices", type=flag(WholeNumber), nargs="+", metavar="I", help="record all but these entries"
    )
    parser.add_argument("--json", action="store_true", help="print what was recorded as JSON")
    parser.set_defaults(run=_collect)
    return parser


def _collect(arguments: argparse.Namespace) -> None:
    from rltransformers.cli.collect import collect_dataset
    from rltransformers.training.experiment import EnvironmentConfig
    from rltransformers.training.threads import use_threads

    environment = EnvironmentConfig(arguments.env, arguments.num_envs, _mapping(arguments.env_kwargs, "--env-kwargs"))
    summary = collect_dataset(
        environment,
        arguments.behaviour,
        arguments.dataset,
        arguments.steps,
        arguments.seed,
        keep=arguments.keep_indices,
        drop=arguments.drop_indices,
        deterministic=arguments.deterministic,
        overwrite=arguments.overwrite,
        progress=sys.stderr.isatty(),
        notice=use_threads(arguments.threads),
    )
    if arguments.json:
        _print_json(summary)
    else:
        _print_tree(summary)


# List -------------------------------------------------------------------------------------------------------


def _add_list(commands: Parsers) -> argparse.ArgumentParser:
    parser = _command(
        commands,
        "list",
        "Show agents, configs, presets and every mechanism a backbone can be made of.",
        """
The names printed here are what a config takes under `agent`, `backbone.preset` and `backbone.<axis>`.

  rltransformers list
  rltransformers list --json
""",
    )
    parser.add_argument("--json", action="store_true", help="print all of it, with sources and abilities, as JSON")
    parser.set_defaults(run=_list)
    return parser


def _list(arguments: argparse.Namespace) -> None:
    from rltransformers.backbone import AXES

    contents = list_contents()
    if arguments.json:
        _print_json(contents)
        return
    names = {**contents, "presets": [preset["name"] for preset in contents["presets"]]}
    for name in ("agents", "configs", "presets"):
        print(f"{name}\n  {', '.join(names[name])}\n")
    for axis, entries in contents["axes"].items():
        print(f"{'backbone' if axis in AXES else 'policy'}.{axis}")
        for entry in entries:
            print(f"  {entry['name']:<20} {entry['id']:<11} {entry['summary'].rstrip('.')}. [{entry['paper']}]")
            if entry["options"]:
                print(f"{'':35}options: {', '.join(entry['options'])}")
        print()


def list_contents() -> dict[str, Any]:
    """Everything ``rltransformers list`` knows, as JSON values."""
    from rltransformers.backbone import PRESETS, catalogue
    from rltransformers.cli.runs import packaged_configs
    from rltransformers.policies.readouts.catalogue import READOUTS
    from rltransformers.policies.set_encoders.catalogue import ENCODERS
    from rltransformers.training.experiment import AgentName

    axes = {
        axis: [
            {
                "id": spec.id,
                "name": spec.name,
                "paper": spec.paper,
                "summary": spec.summary,
                "formula": spec.formula,
                "options": spec.options_text(),
                "traits": asdict(spec.traits),
            }
            for spec in entries
        ]
        for axis, entries in (
            catalogue() | {"encoder": list(ENCODERS.values()), "readout": list(READOUTS.values())}
        ).items()
    }
    agents = [agent.value for agent in AgentName]
    presets = [
        {"id": preset.id, "name": name, "paper": preset.paper, "sets": preset.overrides, "differs": preset.deviation}
        for name, preset in sorted(PRESETS.items())
    ]
    return {"axes": axes, "presets": presets, "agents": agents, "configs": packaged_configs()}


# Inspect ----------------------------------------------------------------------------------------------------


def _add_inspect(commands: Parsers) -> argparse.ArgumentParser:
    parser = _command(
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
    parser.set_defaults(run=_inspect)
    return parser


def _inspect(arguments: argparse.Namespace) -> None:
    from rltransformers.data import load_trajectories, normalized_score

    data = load_trajectories(arguments.dataset)
    summary = data.summary()
    scores = normalized_score(data.env_id or data.name, data.returns)
    if scores is not None:
        summary["normalized_score_mean"] = float(scores.mean())
    if arguments.json:
        _print_json(summary)
    else:
        _print_tree(summary)


# Shared -----------------------------------------------------------------------------------------------------


def _command(commands: Parsers, name: str, summary: str, text: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=summary,
        description=summary,
        epilog=text.strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    assert isinstance(parser, argparse.ArgumentParser)
    return parser


def _add_threads(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--threads",
        type=flag(Threads),
        metavar="N",
        help=f"threads of torch (default: {default})",
    )


def _add_trust(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trust", action="store_true", help="run the modules and pickles that the files name, see docs/command_line.md"
    )


def _mapping(text: str, name: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f'{name} must be JSON such as {{"delay": 16}}, got {text!r} ({error})') from error
    if not isinstance(value, dict):
        raise ConfigError(f"{name} must be a JSON object, got {text!r}")
    return value


def _print_results(results: Sequence[Any]) -> None:
    """A table with one column per target return."""
    from rltransformers.training.evaluation import return_alignment

    summaries = [result.summary() for result in results]
    labels = {
        "step": "training step",
        "target_return": "target return",
        "episodes": "episodes",
        "return_mean": "return, mean",
        "return_std": "return, std",
        "return_iqm": "return, IQM",
        "return_iqm_interval": "  95 % interval",
        "length_mean": "episode length",
        "success_rate": "success rate",
        "normalized_score": "normalised score",
        "alignment_error": "asked - got, RMS",
    }
    for key, label in labels.items():
        if any(key in summary for summary in summaries):
            print(f"{label:<16}" + "".join(f"{_cell(summary.get(key)):>24}" for summary in summaries))
    targets = {summary["target_return"] for summary in summaries if "target_return" in summary}
    if len(targets) > 1:
        print(f"return alignment, RMSE over {len(targets)} targets: {_cell(return_alignment(results))}")


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(f'{each:.3f}' for each in value)}]"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _print_tree(values: dict[str, Any], indent: str = "") -> None:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            print(f"{indent}{key}")
            _print_tree(value, indent + "  ")
        else:
            shown = (
                f"{value:.6g}" if isinstance(value, float) else json.dumps(value) if isinstance(value, list) else value
            )
            print(f"{indent}{key or '(whole)':<22} {shown}")


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1))


if __name__ == "__main__":
    sys.exit(main())
