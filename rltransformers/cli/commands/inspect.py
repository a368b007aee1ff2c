"""``rltransformers inspect``: check a dataset and describe it."""

import argparse
import json
import textwrap
from typing import Any

from rltransformers.cli.printing import print_json
from rltransformers.cli.words import Parsers, command, flag
from rltransformers.core.ranges import Count


def add(commands: Parsers) -> None:
    """Its options and help."""
    parser = command(
        commands,
        "inspect",
        "Check a dataset and describe it.",
        """
DATASET is a Minari, D4RL or OGBench id (installed on this machine), a file (.hdf5 of D4RL, robomimic, LIBERO,
ManiSkill or d3rlpy, .npz, .csv, .json, .jsonl, .parquet, .arrow), or a folder of saved trajectories, of LeRobot, of
CSV or Parquet files or of Hugging Face datasets. It is read and checked as training would: shapes, NaN, lengths,
flags. Printed is what was understood: leaves and their ranges, spaces, episodes, ends, how actions use their bounds,
returns and how much of them the start decides, and target returns with the episodes near them. A config (.yaml)
stands for its dataset, read as the run would.

  rltransformers inspect hopper/mixture-v0
  rltransformers inspect hopper_medium-v2.hdf5 --json
  rltransformers inspect arm.yaml
  rltransformers inspect log.csv --columns '{observations: [x, y], actions: push, rewards: gain, episode: trial}'
""",
    )
    parser.add_argument("dataset", metavar="DATASET", help="id or path, or a config")
    parser.add_argument(
        "--time-limit", type=flag(Count), metavar="N", help="the step limit of the environment, for data that lack it"
    )
    parser.add_argument(
        "--columns", metavar="MAPPING", help="what the columns of a table with a row per step hold, as dataset.columns"
    )
    for role in ("observation", "action"):
        parser.add_argument(
            f"--{role}-space",
            metavar="SPACE",
            help=f"the {role} space of the environment, for data that lack it, as 'Discrete(3)' or 'Box(-1, 1, (4,))'",
        )
    parser.add_argument(
        "--observation-leaves", nargs="+", metavar="LEAF", help="fields of nested observations that are kept"
    )
    parser.add_argument("--trust", action="store_true", help="read a pickle (.pkl), which runs its code")
    parser.add_argument("--json", action="store_true", help="print the description as JSON")


def run(arguments: argparse.Namespace) -> None:
    """Do it, and print what came of it."""
    from rltransformers.core.spaces import space_from_text
    from rltransformers.core.yaml_text import parse_yaml
    from rltransformers.data import load_trajectories, normalized_score
    from rltransformers.data.description import summary_text

    dataset: str = arguments.dataset
    read_as: dict[str, Any] = {}
    if dataset.endswith((".yaml", ".yml")):
        dataset, read_as = _dataset_of(dataset)
    given = {name: getattr(arguments, name) for name in ("observation_space", "action_space")}
    known: dict[str, Any] = {name: space_from_text(text) for name, text in given.items() if text is not None}
    if arguments.columns is not None:
        known["columns"] = parse_yaml(arguments.columns, "--columns")
    given = {name: getattr(arguments, name) for name in ("observation_leaves", "time_limit")}
    known |= {name: value for name, value in given.items() if value is not None}
    data = load_trajectories(dataset, trust=arguments.trust, **{**read_as, **known})
    summary = data.summary()
    scores = normalized_score(data.env_id or data.name, data.returns)
    if scores is not None:
        summary["normalized_score_mean"] = float(scores.mean())
    if arguments.json:
        print_json(summary)
        return
    print(summary_text(summary))
    for key, guess in data.guesses.items():
        if not guess:
            continue
        line = f"{key} {guess}; say what it is with --{key.replace('_', '-')}, in a config with dataset.{key}"
        print(textwrap.fill(line, 80, break_on_hyphens=False))
    if summary["has_rewards"]:
        print(f"ask for them with      --evaluation.target_returns '{json.dumps(summary['target_returns'])}'")


def _dataset_of(path: str) -> tuple[str, dict[str, Any]]:
    """The dataset that a config names, and how it is read."""
    from rltransformers.core.errors import ConfigError
    from rltransformers.training.runs.experiment import read_experiment

    dataset = read_experiment(path).dataset
    if dataset is None or dataset.id is None:
        raise ConfigError(f"{path} names no recorded data (dataset.id); inspect a file, a folder or an id")
    return dataset.id, dataset.reading()
