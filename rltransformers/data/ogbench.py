"""Datasets of OGBench (Park et al. 2025, arXiv 2410.20092) for one of their tasks, as trajectories with rewards."""

import re
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np

from rltransformers.core.errors import DataError, require
from rltransformers.core.registry import OGBENCH
from rltransformers.core.values import Array
from rltransformers.data.checks import damage
from rltransformers.data.d4rl import D4RL_FILES, trajectories_from_d4rl
from rltransformers.data.spaces import Options
from rltransformers.data.trajectories import Trajectories

FOLDER = Path("~/.ogbench/data")
"""Where ``ogbench.download_datasets`` puts its files."""
_TASK = re.compile(r"(?P<env>.+)-(?P<kind>[a-z]+)-singletask(?P<task>-task[1-9])?-(?P<version>v\d+)")
_NO_TASK = re.compile(r"(?P<env>.+)-(navigate|stitch|explore|play|noisy)-(?P<version>v\d+)")


def ogbench_file(name: str) -> Path | None:
    """The file of an OGBench id with a task ("cube-single-play-singletask-task2-v0"), there or not; None for others."""
    if not name.startswith(OGBENCH):
        return None
    if (match := _TASK.fullmatch(name)) is not None:
        return FOLDER.expanduser() / f"{match['env']}-{match['kind']}-{match['version']}.npz"
    if _NO_TASK.fullmatch(name) and name not in D4RL_FILES:
        one = re.sub(r"-(v\d+)$", r"-singletask-task1-\1", name)
        raise DataError(f"{name}: data of OGBench have no rewards unless a task is named, as in {one!r}")
    return None


def existing_ogbench_file(name: str) -> Path:
    """Return the file of an OGBench id with a task; raise DataError when it is not there."""
    file = ogbench_file(name)
    if file is None or not file.is_file():
        raise DataError(
            f"the OGBench data set {name!r} is not on this machine: there is no file {file}; with network access run "
            f"`python -c \"import ogbench; ogbench.download_datasets(['{file and file.stem}'])\"`, or generate it with "
            f"OGBench's own scripts"
        )
    return file


def read_ogbench(dataset: str, options: Options) -> Trajectories:
    """Read the file of an OGBench id with a task.

    Rewards and ends are those that OGBench computes for the task, -1 in every step before the goal and 0 in the one
    that ends an episode there. A recording goes on after the goal: what follows is another episode, from the first step
    outside of the goal on. Where the recording was cut, the episode is truncated. The environment is that of the task.
    """
    file, match = existing_ogbench_file(dataset), _TASK.fullmatch(dataset)
    assert match is not None
    env_id = f"{match['env']}-singletask{match['task'] or ''}-{match['version']}"
    ogbench = require("ogbench", "ogbench")
    relabel = require("ogbench.relabel_utils", "ogbench").relabel_dataset
    if env_id not in gymnasium.registry:
        raise DataError(f"{dataset}: OGBench has no environment {env_id!r} that would pay rewards")
    with damage(f"{file} is damaged or no data set of OGBench", "download it again"):
        if not zipfile.is_zipfile(file):
            raise ValueError("it is no .npz file")
        dtype = np.uint8 if dataset.startswith("visual-") else np.float32
        arrays = ogbench.load_dataset(str(file), ob_dtype=dtype, add_info=True)
    env = gymnasium.make(env_id, disable_env_checker=True)
    try:
        relabel(env_id, env, arrays)
        options = replace(
            options,
            observation_space=options.observation_space or env.observation_space,
            action_space=options.action_space or env.action_space,
        )
        spec = env.spec.to_json() if env.spec is not None else None
    finally:
        env.close()
    data = trajectories_from_d4rl(episodes_of_task(arrays), options, dataset, "ogbench")
    return replace(data, env_id=env_id, env_spec=spec, verify=False)


def episodes_of_task(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Flat arrays of episodes that end at the goal, of recordings that go on there.

    Of the arrays, all of N rows, ``masks`` is 0 in steps that begin in the goal, ``terminals`` 1 where one was cut.
    """
    at_goal = arrays["masks"] == 0
    cut = arrays["terminals"] > 0
    first = np.concatenate([[True], cut[:-1]])
    rows = ~at_goal | first | ~np.concatenate([[False], at_goal[:-1]])  # all but further steps in the goal
    return {
        "observations": arrays["observations"][rows],
        "actions": arrays["actions"][rows],
        "next_observations": arrays["next_observations"][rows],
        "rewards": arrays["rewards"][rows],
        "terminals": at_goal[rows],
        "timeouts": (cut & ~at_goal)[rows],
    }
