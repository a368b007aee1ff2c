"""Any supported source of logged episodes as ``Trajectories``: Minari, D4RL, episode dicts, and folders of our own."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rltransformers.core.errors import ConfigError, DataError, did_you_mean
from rltransformers.core.files import replacing_folder
from rltransformers.core.members import numbers
from rltransformers.core.ranges import Count, check
from rltransformers.core.spaces import (
    leaf_spaces,
    leaf_values,
    map_leaves,
    nest_leaves,
    nest_paths,
    nested_leaves,
    space_from_leaves,
)
from rltransformers.data.d4rl import read_d4rl_file, trajectories_from_d4rl
from rltransformers.data.hdf5 import check_file
from rltransformers.data.keys import NAMES, key_names
from rltransformers.data.minari import restore_minari
from rltransformers.data.spaces import infer_space
from rltransformers.data.trajectories import (
    DESCRIPTION,
    Allocate,
    Trajectories,
    TrajectoryWriter,
    check_actions,
    column,
)

Space = gym.Space[Any]
Dataset: TypeAlias = Any
"""A Minari id or dataset object, a path, a D4RL dict, an iterable of episode dicts, or Trajectories."""

_EPISODES_AT_ONCE = 32
"""Minari episodes read while their file is open, for HDF5 keeps some 30 KB about each of them until the file closes."""


def load_trajectories(
    dataset: Dataset,
    *,
    observation_space: Space | None = None,
    action_space: Space | None = None,
    observation_leaves: Sequence[str] | None = None,
    name: str | None = None,
    time_limit: int | None = None,
    split_on_discontinuity: bool = False,
    cache: str | os.PathLike[str] | None = None,
) -> Trajectories:
    """Trajectories of ``dataset``, checked: shapes, finite numbers, classes inside their spaces, flags only at ends.

    Args:
        dataset: one of
            - a Minari id ("mujoco/hopper/medium-v0", looked up on this machine only) or a ``MinariDataset``;
            - the path of a Minari folder, of a D4RL file (.hdf5, .h5), or of a folder that ``Trajectories.save`` wrote;
            - a D4RL-style dict: observations, actions, rewards, terminals, optionally timeouts, next_observations;
            - an iterable of episode dicts: observations (T + 1 rows, or T), actions, rewards, optionally terminations,
              truncations, next_observations; nested leaves are dicts or tuples of arrays. Usual other names of these
              are understood (``rltransformers.data.keys.NAMES``), infos are not read, and other keys are an error;
            - ``Trajectories``.
        observation_space, action_space: checked against the data (of a Box of observations not the bounds, which real
            ones exceed); where the format stores none they are otherwise guessed (see
            ``rltransformers.data.spaces.infer_space``).
        observation_leaves: keep only these leaves ("image", "arm/joints") of nested observations, e.g. no text.
        name: how messages and tables call the data.
        time_limit: the environment's step limit, for sources that do not mark it: episodes of exactly that length count
            as truncated, and flat data without ``timeouts`` are cut there.
        split_on_discontinuity: see ``trajectories_from_d4rl``; AntMaze files need it.
        cache: a folder that keeps a memory-mapped copy of a file or Minari data set, under a name that changes with
            the source and the options; opening it again reads nothing. Sets larger than memory need it.

    Raises:
        DataError: names the data set, the leaf, the episode and the step that break a rule, and the way out.
        ConfigError: for options that the source cannot take.
    """
    if isinstance(dataset, os.PathLike):
        dataset = os.fspath(dataset)
    check(time_limit, Count | None, "time_limit")
    options: dict[str, Any] = {"time_limit": time_limit, "split_on_discontinuity": split_on_discontinuity}
    options |= {"observation_space": observation_space, "action_space": action_space}

    if isinstance(dataset, str) and (Path(dataset) / DESCRIPTION).is_file():
        dataset = Trajectories.open(dataset)
    if isinstance(dataset, Trajectories):
        return _checked(_keep_leaves(dataset, observation_leaves), observation_space, action_space)
    if isinstance(dataset, str) and _is_hdf5(dataset):
        source = Path(dataset)
        reader = partial(read_d4rl_file, source, name=name, **options)
        data = _cached(reader, cache, _file_key(source), {**options, "name": name})
        return _keep_leaves(data, observation_leaves)
    if isinstance(dataset, str) or _is_minari(dataset):
        _refuse(split_on_discontinuity, "split_on_discontinuity", "Minari data, whose episodes are stored one by one")
        minari_dataset = open_minari(dataset) if isinstance(dataset, str) else dataset
        key: dict[str, Any] = {"leaves": observation_leaves, "time_limit": time_limit, "name": name}
        reader = partial(_from_minari, minari_dataset, **key)
        data = _cached(reader, cache, _minari_key(minari_dataset), key)
        return _checked(data, observation_space, action_space)
    _refuse(cache is not None, "cache", "data in memory; call .save(folder) on the result")
    if observation_leaves is not None and observation_space is not None:
        options["observation_space"] = _prune(observation_space, observation_leaves)
    if isinstance(dataset, Mapping):
        return trajectories_from_d4rl(_pick(dataset, observation_leaves), name=name or "dict", **options)
    if isinstance(dataset, Iterable):
        _refuse(split_on_discontinuity, "split_on_discontinuity", "episodes, which are split already")
        options.pop("split_on_discontinuity")
        episodes = [_pick(episode, observation_leaves) for episode in dataset]
        return trajectories_from_episodes(episodes, name=name or "episodes", **options)
    raise DataError(
        f"cannot read a dataset from {type(dataset).__name__}; pass a Minari id or object, a path to a D4RL .hdf5 file "
        f"or to saved trajectories, a D4RL-style dict, or a list of episode dicts"
    )


def trajectories_from_episodes(
    episodes: Iterable[Mapping[str, Any]],
    *,
    observation_space: Space | None = None,
    action_space: Space | None = None,
    name: str = "episodes",
    time_limit: int | None = None,
) -> Trajectories:
    """Trajectories of episode dicts; keys as in ``load_trajectories``. An end without a flag counts as truncated."""
    listed = [_arrays(episode, index, name) for index, episode in enumerate(episodes)]
    if not listed:
        raise DataError(f"{name}: holds no episode; nothing can be learned from it")
    lengths = [len(episode["rewards"]) for episode in listed]
    if 0 in lengths:
        raise DataError(f"{name}: episode {lengths.index(0)} is empty; drop episodes without steps")
    observation_space = observation_space or infer_space(_stack(listed, "observations", name), "observations", name)
    action_space = action_space or infer_space(_stack(listed, "actions", name), "actions", name)
    writer = TrajectoryWriter(lengths, observation_space, action_space, name=name)
    for episode in listed:
        observations = episode["observations"]
        if "next_observations" in episode:
            observations = _append_last(observation_space, observations, episode["next_observations"], writer)
        writer.add(
            observations,
            episode["actions"],
            episode["rewards"],
            episode.get("terminations", False),
            episode.get("truncations", False),
            time_limit=time_limit,
        )
    return writer.finish(metadata={"format": "episodes"})


def _arrays(episode: Any, index: int, name: str) -> dict[str, Any]:
    """The arrays of one episode under our names (see ``key_names``), rewards as numbers [T]."""
    where = f"{name}: episode {index}"
    if not isinstance(episode, Mapping):
        raise DataError(f"{where} is {type(episode).__name__}, expected a dict of arrays")
    given = key_names(episode, where)
    for key in ("observations", "actions", "rewards"):
        if key not in given:
            raise DataError(f"{where} lacks {key!r}; present: {sorted(map(str, episode))}")
    arrays = {ours: episode[theirs] for ours, theirs in given.items()}
    try:
        arrays["rewards"] = np.atleast_1d(column(numbers(arrays["rewards"])))
    except DataError as error:
        raise DataError(f"{name}: rewards of episode {index} {error}") from error
    return arrays


def _stack(episodes: Sequence[Mapping[str, Any]], key: str, name: str) -> Any:
    """All rows of all episodes, per leaf, for the inference of a space."""

    def join(*leaves: Any) -> Any:
        return np.concatenate([numbers(leaf) for leaf in leaves])

    try:
        return map_leaves(join, *(episode[key] for episode in episodes))
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise DataError(f"{name}: the {key} of the episodes do not fit together ({error})") from error


def _append_last(space: Space, observations: Any, following: Any, writer: TrajectoryWriter) -> Any:
    """Observations with the last row of ``next_observations`` behind them, nested like the space."""

    def join(rows: Any, after: Any) -> Any:
        rows, after = np.asarray(rows), np.asarray(after)
        return np.concatenate([rows, after[-1:]]) if len(rows) == len(after) else rows

    try:
        last = leaf_values(space, following)
        return nest_leaves(
            space, {path: join(rows, last[path]) for path, rows in leaf_values(space, observations).items()}
        )
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise DataError(f"{writer.name}: next_observations do not fit the observations ({error})") from error


# Minari ------------------------------------------------------------


def open_minari(dataset: str) -> Any:
    """The ``MinariDataset`` of an id or folder on this machine; nothing is ever downloaded.

    Raises:
        DataError: at once, with the command that fetches the data or the closest local ids.
    """
    import minari  # slow to import and needed for Minari data only
    from minari.storage import get_dataset_path

    folder = Path(dataset)
    if not (folder / "data" / "metadata.json").is_file():
        if dataset.startswith((".", os.sep, "~")) or folder.suffix:
            raise DataError(
                f"{dataset!r} is neither a D4RL file (.hdf5, .h5) nor a folder of trajectories or Minari data"
            )
        restore_minari(dataset)
        folder = get_dataset_path(dataset)
    if not (folder / "data" / "metadata.json").is_file():
        local = _local_minari_ids(get_dataset_path())
        hint = f" On this machine: {did_you_mean(dataset, local)}" if local else ""
        raise DataError(
            f"the Minari data set {dataset!r} is not in {get_dataset_path()}; with network access run "
            f"`minari download {dataset}`, or set MINARI_DATASETS_PATH.{hint}"
        )
    try:
        return minari.MinariDataset(folder / "data")
    except Exception as error:  # Minari raises asserts, KeyErrors and ValueErrors for damaged or too new metadata
        raise DataError(f"the Minari data set {dataset!r} in {folder} cannot be opened: {error}") from error


def _local_minari_ids(root: Path) -> list[str]:
    return [str(path.parent.parent.relative_to(root)) for path in root.glob("**/data/metadata.json")]


def _is_minari(dataset: object) -> bool:
    return type(dataset).__name__ == "MinariDataset" and hasattr(dataset, "iterate_episodes")


def _from_minari(
    dataset: Any,
    *,
    leaves: Sequence[str] | None,
    time_limit: int | None,
    name: str | None,
    allocate: Allocate | None = None,
) -> Trajectories:
    name = name or dataset.id
    indices = [int(index) for index in dataset.episode_indices]
    if not indices:
        raise DataError(f"{name}: holds no episode; nothing can be learned from it")
    raw = dataset.storage.read_raw_metadata(dataset.storage.data_path)
    full_space = dataset.observation_space
    kept = _prune(full_space, leaves)
    with _damage(name):
        for file in sorted(Path(dataset.storage.data_path).glob("*.hdf5")):
            check_file(file)
        lengths = [
            int(metadata["total_steps"])
            for some in _batches(indices)
            for metadata in dataset.storage.get_episode_metadata(some)
        ]
    writer = TrajectoryWriter(lengths, kept, dataset.action_space, name=name, allocate=allocate)
    read = 0
    for index, length, episode in zip(indices, lengths, _episodes(dataset, indices, name), strict=True):
        if len(episode.rewards) != length:
            raise DataError(
                f"{name}: episode {index} has {len(episode.rewards)} steps on reading, its metadata say {length}; "
                f"Minari's {raw.get('data_format')} reader cuts episodes above 32,767 steps: store the data as hdf5"
            )
        observations = leaf_values(full_space, episode.observations)
        writer.add(
            nest_leaves(kept, observations),
            episode.actions,
            episode.rewards,
            episode.terminations,
            episode.truncations,
            time_limit=time_limit,
        )
        read += length
    if read != dataset.total_steps:
        raise DataError(
            f"{name}: episodes hold {read} steps, the metadata say {dataset.total_steps}; write the set again"
        )
    env_spec = raw.get("env_spec")
    facts = {key: raw[key] for key in ("ref_min_score", "ref_max_score", "algorithm_name") if raw.get(key) is not None}
    return writer.finish(
        env_id=json.loads(env_spec)["id"] if env_spec else None,
        env_spec=env_spec,
        metadata={"format": "minari", "dataset_id": dataset.id, **facts},
    )


def _batches(indices: Sequence[int]) -> Iterator[Sequence[int]]:
    return (indices[start : start + _EPISODES_AT_ONCE] for start in range(0, len(indices), _EPISODES_AT_ONCE))


def _episodes(dataset: Any, indices: Sequence[int], name: str) -> Iterator[Any]:
    for some in _batches(indices):
        iterator = iter(dataset.iterate_episodes(some))
        while True:
            with _damage(name):
                episode = next(iterator, None)
            if episode is None:
                break
            yield episode


@contextmanager
def _damage(name: str) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except (OSError, KeyError, ValueError, RuntimeError) as error:  # what h5py and pyarrow raise for broken files
        raise DataError(
            f"{name}: the stored episodes are damaged ({error}); download or record the set again"
        ) from error


# Leaves, spaces, cache ------------------------------------------------------------


def _prune(space: Space, leaves: Sequence[str] | None) -> Space:
    if leaves is None:
        return space
    known = leaf_spaces(space)
    for path in leaves:
        if path not in known:
            raise ConfigError(f"observation_leaves names {path!r}: {did_you_mean(path, known)}")
    return space_from_leaves({path: leaf for path, leaf in known.items() if path in leaves})


def _pick(arrays: Any, leaves: Sequence[str] | None) -> Any:
    """The dict with only these leaves in its observations, as nested dicts."""
    if leaves is None or not isinstance(arrays, Mapping):
        return arrays

    def chosen(observations: Any) -> Any:
        known = nested_leaves(observations)
        for path in leaves:
            if path not in known:
                raise ConfigError(f"observation_leaves names {path!r}: {did_you_mean(path, known)}")
        return nest_paths({path: known[path] for path in leaves})

    kinds = NAMES["observations"] + NAMES["next_observations"]
    return {key: chosen(value) if key in kinds else value for key, value in arrays.items()}


def _keep_leaves(data: Trajectories, leaves: Sequence[str] | None) -> Trajectories:
    if leaves is None:
        return data
    space = _prune(data.observation_space, leaves)
    kept = {path: data.observations[path] for path in leaf_spaces(space)}
    return replace(data, observations=kept, observation_space=space, contents_checked=True)


def _checked(data: Trajectories, observation_space: Space | None, action_space: Space | None) -> Trajectories:
    for role, given, stored in (
        ("observation", observation_space, data.observation_space),
        ("action", action_space, data.action_space),
    ):
        if given is not None and given != stored and not _same_layout(given, stored):
            raise DataError(
                f"{data.name}: the {role} space of the data is {stored}, expected {given}; use matching data"
            )
    if action_space is not None and action_space != data.action_space:
        check_actions(data, action_space)
    return data


def _same_layout(one: Space, other: Space) -> bool:
    """Equal up to the bounds and float width of Boxes."""
    left, right = leaf_spaces(one), leaf_spaces(other)
    if list(left) != list(right):
        return False
    for path, leaf in left.items():
        twin = right[path]
        if isinstance(leaf, gym.spaces.Box) and isinstance(twin, gym.spaces.Box):
            if leaf.shape != twin.shape or np.dtype(leaf.dtype).kind != np.dtype(twin.dtype).kind:
                return False
        elif leaf != twin:
            return False
    return True


def _refuse(condition: bool, option: str, why: str) -> None:
    if condition:
        raise ConfigError(f"{option} does not apply to {why}")


def _is_hdf5(path: str) -> bool:
    return Path(path).suffix.lower() in {".hdf5", ".h5", ".hdf"}


def _file_key(path: Path) -> list[Any]:
    if not path.is_file():
        raise DataError(f"there is no file {path}; download the D4RL file first and pass its path")
    status = path.stat()
    return [str(path.resolve()), status.st_size, status.st_mtime_ns]


def _minari_key(dataset: Any) -> list[Any]:
    data_path = Path(dataset.storage.data_path)
    files = sorted(path for path in data_path.glob("*") if path.is_file())
    return [[_file_key(path) for path in files], [int(index) for index in dataset.episode_indices]]


def _cached(
    read: Callable[..., Trajectories],
    cache: str | os.PathLike[str] | None,
    source: list[Any],
    options: Mapping[str, Any],
) -> Trajectories:
    """``read()``, or the memory-mapped copy in the cache, written first when it is not there yet."""
    if cache is None:
        return read()
    digest = hashlib.sha256(json.dumps([source, dict(options)], sort_keys=True, default=str).encode()).hexdigest()[:16]
    target = Path(cache) / f"trajectories-{digest}"
    if (target / DESCRIPTION).is_file():
        return Trajectories.open(target)
    try:
        with replacing_folder(target) as temporary:

            def allocate(file: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
                if 0 in shape:
                    return np.empty(shape, dtype)
                return np.lib.format.open_memmap(temporary / file, mode="w+", dtype=dtype, shape=shape)

            filled = read(allocate=allocate)
            np.save(temporary / "offsets.npy", filled.offsets, allow_pickle=False)
            filled._describe(temporary)
            del filled
    except OSError:
        if not (target / DESCRIPTION).is_file():  # else another process finished the same copy first
            raise
    return Trajectories.open(target)
