"""HDF5 files with a group per demonstration: of robomimic, LIBERO and Isaac Lab (data/demo_0), of ManiSkill (traj_0).

The layout is that of robomimic's page "Dataset Structure"; ManiSkill writes T + 1 observations and no ``next_obs``.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from rltransformers.core.errors import DataError
from rltransformers.data.episodes import trajectories_from_episodes
from rltransformers.data.hdf5 import lazy_tree
from rltransformers.data.keys import ENDS, NAMES
from rltransformers.data.spaces import Options
from rltransformers.data.trajectories import Trajectories

_DEMO = re.compile(r"(demo|traj)_(\d+)")


def has_demos(file: Any) -> bool:
    """Whether an open HDF5 file has a group per demonstration."""
    return any(_DEMO.fullmatch(key) for key in _parent(file))


def trajectories_from_demos(file: Any, options: Options, name: str) -> Trajectories:
    """Trajectories of the demonstrations of an open HDF5 file, in the order of their numbers.

    A demonstration is an episode. It is terminated where its last ``dones`` (or ``terminated``) is 1 and truncated
    otherwise. robomimic sets ``dones`` in every state of success, at the end of every demonstration, or in both
    (``done_mode`` of its ``dataset_states_to_obs``), and the recordings go on after a success: marks before the last
    step end nothing.

    What robomimic knows of the environment is ``metadata["env_args"]``; its filter keys are ``metadata["mask"]``: for
    each of them the episodes that ``Trajectories.select`` takes.
    """
    parent = _parent(file)
    demos = sorted(filter(_DEMO.fullmatch, parent), key=lambda key: int(key.rpartition("_")[2]))
    name = options.name or name
    facts = _facts(file, demos)
    episodes = (_episode(parent[demo], f"{name}: {demo}") for demo in demos)
    data = trajectories_from_episodes(episodes, options, name, "robomimic")
    return replace(data, metadata={**data.metadata, **facts}, verify=False)


def _parent(file: Any) -> Any:
    import h5py

    data = file.get("data")
    return data if isinstance(data, h5py.Group) else file


def _episode(group: Any, where: str) -> dict[str, Any]:
    """The arrays of a demonstration; what is not read here, as states of a simulator, is no part of an episode."""
    known = [key for names in NAMES.values() for key in names if key in group]
    episode: dict[str, Any] = {key: lazy_tree(group[key]) for key in known}
    if not any(key in group for key in NAMES["observations"]):
        raise DataError(
            f"{where} has no observations ('obs'), only {sorted(group)}; write them into the file with robomimic's "
            f"dataset_states_to_obs.py, or with ManiSkill's replay_trajectory and its option --obs-mode"
        )
    actions = next((episode[key] for key in NAMES["actions"] if key in episode), None)
    if actions is None or not hasattr(actions, "shape"):
        raise DataError(f"{where} has no array 'actions', only {sorted(group)}; record the demonstration again")
    stated = group.attrs.get("num_samples", len(actions))
    if stated != len(actions):
        raise DataError(f"{where} states {stated} samples and holds {len(actions)} actions; it is incomplete")
    for names in (NAMES["terminations"], NAMES["truncations"], ENDS):
        for key in names:
            if key in group and not (names is ENDS and "terminations" in episode):  # those of both kinds
                marks = np.asarray(group[key]).reshape(-1)
                episode.pop(key, None)
                episode["terminations" if names is ENDS else names[0]] = marks[-1:].any()
    return episode


def _facts(file: Any, demos: list[str]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    text = _parent(file).attrs.get("env_args")
    if text is not None:
        try:
            facts["env_args"] = json.loads(text)
        except (ValueError, TypeError, RecursionError):
            facts["env_args"] = str(text)
    masks = {key: list(_names(array)) for key, array in file["mask"].items()} if "mask" in file else {}
    if masks:
        facts["mask"] = {key: [demos.index(demo) for demo in names if demo in demos] for key, names in masks.items()}
    return facts


def _names(array: Any) -> Iterator[str]:
    return (value.decode() if isinstance(value, bytes) else str(value) for value in np.asarray(array).reshape(-1))
