"""HDF5 files that d3rlpy dumps: ``ReplayBuffer.dump`` of version 2, ``MDPDataset.dump`` of version 1."""

import re
from typing import Any

import numpy as np

from rltransformers.core.errors import DataError
from rltransformers.data.d4rl import trajectories_from_d4rl
from rltransformers.data.episodes import trajectories_from_episodes
from rltransformers.data.hdf5 import lazy_tree
from rltransformers.data.spaces import Options
from rltransformers.data.trajectories import Trajectories

_COLUMN = re.compile(r"(?P<key>[a-z_]+)_(?P<episode>\d+)(_(?P<member>\d+))?")  # observations_3_1: of a Tuple
_FLAT = ("observations", "actions", "rewards", "terminals")


def is_dump(file: Any) -> bool:
    """Whether an open HDF5 file is one that d3rlpy dumped."""
    return "actions_0" in file or "episode_terminals" in file or "discrete_action" in file


def trajectories_from_dump(file: Any, options: Options, name: str) -> Trajectories:
    """Trajectories of an open HDF5 file of either version.

    d3rlpy stores no observation after the last action. Integer actions in a column are classes, as d3rlpy has no other
    integers. Version 1 says with ``episode_terminals`` where an episode ends, with ``terminals`` where it terminates.
    """
    if "actions_0" in file:
        return trajectories_from_episodes(_episodes(file), options, name, "d3rlpy")
    missing = [key for key in _FLAT if key not in file]
    if missing:
        raise DataError(f"{file.filename}: a dump of d3rlpy holds {list(_FLAT)}, this one lacks {missing}")
    arrays: dict[str, Any] = {key: lazy_tree(file[key]) for key in _FLAT}
    arrays["actions"] = _classes(arrays["actions"])
    if "episode_terminals" in file:
        ends = np.asarray(file["episode_terminals"]).reshape(-1)
        arrays["timeouts"] = (ends != 0) & (np.asarray(file["terminals"]).reshape(-1) == 0)
    return trajectories_from_d4rl(arrays, options, name, "d3rlpy")


def is_replay(value: object) -> bool:
    """Whether this is a ``ReplayBuffer`` or ``MDPDataset`` of d3rlpy."""
    return hasattr(value, "episodes") and hasattr(value, "dataset_info")


def trajectories_from_replay(buffer: Any, options: Options) -> Trajectories:
    """Trajectories of the episodes of such a buffer."""
    keys = ("observations", "rewards", "terminated")
    episodes = [
        {key: getattr(episode, key) for key in keys} | {"actions": _classes(episode.actions)}
        for episode in buffer.episodes
    ]
    return trajectories_from_episodes(episodes, options, type(buffer).__name__, "d3rlpy")


def _episodes(file: Any) -> list[dict[str, Any]]:
    episodes: dict[int, dict[str, Any]] = {}
    for name in file:
        if (match := _COLUMN.fullmatch(name)) is None:
            continue
        arrays = episodes.setdefault(int(match["episode"]), {})
        if match["member"] is None:
            arrays[match["key"]] = lazy_tree(file[name])
        else:
            arrays.setdefault(match["key"], {})[int(match["member"])] = lazy_tree(file[name])
    stated = int(file["num_episodes"][()]) if "num_episodes" in file else len(episodes)
    if sorted(episodes) != list(range(stated)):
        raise DataError(f"{file.filename}: states {stated} episodes and holds {len(episodes)}; dump the buffer again")
    for arrays in episodes.values():
        for key, value in arrays.items():
            if isinstance(value, dict) and all(isinstance(member, int) for member in value):
                arrays[key] = tuple(value[member] for member in sorted(value))
        if "actions" in arrays:
            arrays["actions"] = _classes(arrays["actions"])
    return [episodes[index] for index in range(stated)]


def _classes(actions: Any) -> Any:
    """Actions [T, 1] of integers as classes [T]; others as they are."""
    column = getattr(actions, "shape", ())[1:] == (1,) and actions.dtype.kind in "iu"
    return np.asarray(actions)[:, 0] if column else actions
