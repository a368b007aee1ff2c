"""Datasets of OGBench (Park et al. 2025, arXiv 2410.20092): by the id of a task with rewards, or by their path."""

import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from rltransformers.core.errors import DataError, require
from rltransformers.core.registry import OGBENCH
from rltransformers.core.values import Array
from rltransformers.data.arrays import opened_npz
from rltransformers.data.checks import prefixing
from rltransformers.data.d4rl import D4RL_FILES, trajectories_from_d4rl
from rltransformers.data.spaces import Options
from rltransformers.data.trajectories import Trajectories

_RECORDED = ("observations", "actions", "terminals")
_STATES = ("qpos", "qvel", "button_states")  # which OGBench computes the rewards of a task from
FOLDER = Path("~/.ogbench/data")
"""Where ``ogbench.download_datasets`` puts its files."""
_TASK = re.compile(r"(?P<env>.+)-(?P<kind>[a-z]+)-singletask(?P<task>-task[1-9])?-(?P<version>v\d+)(?P<val>-val)?")
_NO_TASK = re.compile(r"(?P<env>.+)-(navigate|stitch|explore|play|noisy)-(?P<version>v\d+)")


def ogbench_file(name: str) -> Path | None:
    """The file of an OGBench id with a task ("cube-single-play-singletask-task2-v0"), there or not; None for others.

    Behind the path of a folder and before ".npz" an id means the file in that folder, with "-val" that for validation.
    """
    path = Path(name).expanduser()
    is_path = path.suffix == ".npz" and not path.is_file()
    folder, name = (path.parent, path.stem) if is_path else (FOLDER.expanduser(), name)
    if not name.startswith(OGBENCH):
        return None
    if (match := _TASK.fullmatch(name)) is not None:
        return folder / f"{match['env']}-{match['kind']}-{match['version']}{match['val'] or ''}.npz"
    if _NO_TASK.fullmatch(name) and name not in D4RL_FILES and not is_path:
        one = re.sub(r"-(v\d+)$", r"-singletask-task1-\1", name)
        raise DataError(f"{name}: data of OGBench have no rewards unless a task is named, as in {one!r}")
    return None


def existing_ogbench_file(name: str) -> Path:
    """Return the file of an OGBench id with a task; raise DataError when it is not there."""
    file = ogbench_file(name)
    if file is None or not file.is_file():
        base = file and file.stem.removesuffix("-val")
        raise DataError(
            f"the OGBench data set {name!r} is not on this machine: there is no file {file}; with network access run "
            f"`python -c \"import ogbench; ogbench.download_datasets(['{base}'])\"`, or generate it with OGBench's own "
            f"scripts"
        )
    return file


def read_ogbench(dataset: str, options: Options) -> Trajectories:
    """Read the file of an OGBench id with a task, or of a path with one (see ``ogbench_file``).

    Rewards and ends are those that OGBench computes for the task, -1 in every step before the goal and 0 in the one
    that ends an episode there. A recording goes on after the goal: what follows is another episode, from the first step
    outside of the goal on. Where the recording was cut, the episode is truncated. The environment is that of the task.
    """
    file, name = existing_ogbench_file(dataset), Path(dataset).name.removesuffix(".npz")
    match = _TASK.fullmatch(name)
    assert match is not None
    env_id = f"{match['env']}-singletask{match['task'] or ''}-{match['version']}"
    require("ogbench", "ogbench")
    relabel = require("ogbench.relabel_utils", "ogbench").relabel_dataset
    if env_id not in gymnasium.registry:
        raise DataError(f"{dataset}: OGBench has no environment {env_id!r} that would pay rewards")
    with opened_npz(file) as stored:
        if not is_recording(stored):
            raise DataError(f"{file} is no data set of OGBench, it holds {sorted(stored)}; download it again")
        arrays = transitions_of(stored)
    env = gymnasium.make(env_id, disable_env_checker=True)
    try:
        relabel(env_id, env, arrays)
        options = options.with_spaces(env)
        spec = env.spec.to_json() if env.spec is not None else None
    finally:
        env.close()
    data = trajectories_from_d4rl(episodes_of_task(arrays), options, name, "ogbench")
    return replace(data, env_id=env_id, env_spec=spec, verify=False)


def is_recording(arrays: Mapping[str, Any]) -> bool:
    """Whether these arrays are those of a file of OGBench: recordings, and states to compute rewards from."""
    return set(_RECORDED) <= set(arrays) <= {*_RECORDED, *_STATES}


def transitions_of(arrays: Mapping[str, Any]) -> dict[str, Array]:
    """Transitions of recordings of which the last row, where ``terminals`` is 1, holds only the last observation.

    The action there leads nowhere. Of the result, ``terminals`` is 1 in the last transition of a recording.
    """
    stored = {key: np.asarray(arrays[key]) for key in (*_RECORDED, *_STATES) if key in arrays}
    last = stored["terminals"].reshape(-1) > 0
    last[-1:] = True
    acted = ~last
    if not acted.any():
        raise DataError("no recording has a second row, so there is no transition; download the file again")
    after = np.concatenate([[False], acted[:-1]])
    result = {key: rows[acted] for key, rows in stored.items()}
    terminals = np.concatenate([last[1:], [True]])[acted].astype(np.float32)
    return result | {"next_observations": stored["observations"][after], "terminals": terminals}


def trajectories_from_recording(arrays: Mapping[str, Any], options: Options, name: str) -> Trajectories:
    """Trajectories of the recordings of a file, all truncated, without rewards."""
    name = options.name or name
    task = re.sub(r"-(v\d+)(-val)?$", r"-singletask-task1-\1\2", name)
    way_out = f"; a path that ends in {task + '.npz'!r} reads this file with those of task 1" if task != name else ""
    warnings.warn(
        f"{name}: holds no rewards, so it is read as data of OGBench: the last row of a recording is only its last "
        "observation; where its action was taken, too, say what the arrays hold: columns={'observations': "
        f"'observations', 'actions': 'actions', 'terminations': 'terminals'}}{way_out}",
        stacklevel=2,
    )
    with prefixing(f"{name}:"):
        rows = transitions_of(arrays)
    flat = {key: rows[key] for key in ("observations", "actions", "next_observations")}
    flat |= {"terminals": np.zeros(len(rows["terminals"]), bool), "timeouts": rows["terminals"]}
    return trajectories_from_d4rl(flat, options, name, "ogbench")


def episodes_of_task(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Flat arrays of episodes that end at the goal, of recordings that go on there.

    Of the arrays, all of N rows, ``masks`` is 0 in steps that begin in the goal, ``terminals`` 1 where one was cut.
    """
    at_goal = arrays["masks"] == 0
    cut = arrays["terminals"] > 0
    first = np.concatenate([[True], cut[:-1]])
    rows = ~at_goal | first | ~np.concatenate([[False], at_goal[:-1]])  # all but further steps in the goal
    result = {key: arrays[key][rows] for key in ("observations", "actions", "next_observations", "rewards")}
    return result | {"terminals": at_goal[rows], "timeouts": (cut & ~at_goal)[rows]}
