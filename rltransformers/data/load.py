"""Any supported source of logged episodes as ``Trajectories``: files, folders, ids and objects, told apart here."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rltransformers.core.errors import OUR_ERRORS, ConfigError, DataError, did_you_mean, error_line, one_line
from rltransformers.core.files import (
    existing_file,
    file_lock,
    is_pickle,
    read_json,
    remove_left_overs,
    replacing_folder,
)
from rltransformers.core.ranges import Count, check, shown, suggesting
from rltransformers.core.registry import OGBENCH
from rltransformers.core.spaces import leaf_spaces, leaf_values, nest_leaves, space_to_json
from rltransformers.data.arrays import read_npz
from rltransformers.data.buffers import is_buffer, read_buffer, trajectories_from_buffer
from rltransformers.data.d4rl import read_d4rl_file, trajectories_from_d4rl
from rltransformers.data.d4rl_files import d4rl_file
from rltransformers.data.episodes import trajectories_from_episodes
from rltransformers.data.hdf5 import check_file
from rltransformers.data.minari import restore_minari
from rltransformers.data.ogbench import missing_file, ogbench_file, read_ogbench
from rltransformers.data.spaces import prune_space
from rltransformers.data.tables import is_dataset, is_table, read_table, table_files, trajectories_from_dataset
from rltransformers.data.trajectories import (
    DESCRIPTION,
    Allocate,
    Trajectories,
    TrajectoryWriter,
    check_actions,
    check_time_limit,
    in_spaces,
)

Space = gym.Space[Any]
Dataset: TypeAlias = Any
"""A Minari id or dataset object, a path, a D4RL dict, an iterable of episode dicts, or Trajectories."""

_FORMATS: dict[str, Callable[..., Trajectories]] = {
    ".hdf5": read_d4rl_file,
    ".h5": read_d4rl_file,
    ".hdf": read_d4rl_file,
    ".npz": read_npz,
    ".parquet": read_table,
    ".arrow": read_table,
}
_COPY, _SOURCE = "trajectories-", "source.json"
"""Of a cache: how folders of copies begin, and the file in them with the files that were copied."""
_VERSION = r"-v\d+/?$"
_EPISODES_AT_ONCE = 32
"""Minari episodes read while their file is open, for HDF5 keeps some 30 KB about each of them until the file closes."""


@suggesting
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
    trust: bool = False,
) -> Trajectories:
    """Trajectories of ``dataset``, checked: shapes, finite numbers, classes inside their spaces, flags only at ends.

    Args:
        dataset: one of

            - a Minari id ("mujoco/hopper/medium-v0"), a D4RL id ("hopper-medium-v2") or an OGBench id with a task
              ("pointmaze-medium-navigate-singletask-task1-v0"), looked up on this machine only;
            - the path of a D4RL file (.hdf5, .h5), of flat arrays (.npz), of a table (.parquet, .arrow), of a folder of
              Minari, of Parquet files, of ``datasets.save_to_disk``, or of one that ``Trajectories.save`` wrote;
            - a ``MinariDataset``, a ``datasets.Dataset``, a ``ReplayBuffer`` or ``RolloutBuffer`` of Stable-Baselines3;
            - a D4RL-style dict: observations, actions, rewards, terminals, optionally timeouts, next_observations;
            - an iterable of episode dicts: observations (T + 1 rows, or T), actions, rewards, optionally terminations,
              truncations, next_observations; nested leaves are dicts or tuples of arrays. Usual other names of these
              are understood (``rltransformers.data.keys.NAMES``), infos are not read, and other keys are an error;
            - ``Trajectories``.
        observation_space, action_space: those of the result, checked against the data (of a Box of observations not
            the bounds, which real ones exceed). Without them those that the source stores, or where the format stores
            none guessed ones (see ``rltransformers.data.spaces.infer_space``).
        observation_leaves: keep only these leaves ("image", "arm/joints") of nested observations, e.g. no text.
        name: how messages and tables call the data.
        time_limit: the environment's step limit, for sources that do not mark it: episodes of exactly that length count
            as truncated, longer ones are refused, and flat data without ``timeouts`` are cut there.
        split_on_discontinuity: see ``trajectories_from_d4rl``; AntMaze files need it.
        cache: a folder that keeps a memory-mapped copy of a file or Minari data set, under a name that changes with
            the source and the options; opening it again compares checksums. Sets larger than memory need it: HDF5
            files, .npz files and Minari sets are copied in pieces, tables and files of OGBench pass through memory
            once. Copies of earlier contents of the same files are removed when a new one is written.
        trust: read a pickle of ``save_replay_buffer`` (.pkl), which runs whatever code is in it.

    Raises:
        DataError: names the data set, the leaf, the episode and the step that break a rule, and the way out.
        ConfigError: for options that the source cannot take.
    """
    if isinstance(dataset, os.PathLike):
        dataset = os.fspath(dataset)
    time_limit = check(time_limit, Count | None, "time_limit")
    options: dict[str, Any] = {"name": name, "time_limit": time_limit}
    options |= {"observation_space": observation_space, "action_space": action_space}
    splitting: dict[str, Any] = {"split_on_discontinuity": split_on_discontinuity}

    if isinstance(dataset, str) and _holds_trajectories(dataset):
        dataset = Trajectories.open(Path(dataset).expanduser())
    if isinstance(dataset, Trajectories):
        _refuse(split_on_discontinuity, "split_on_discontinuity", "trajectories, which are split into episodes")
        _refuse(cache is not None, "cache", "trajectories; call .save(folder) on the result")
        if name is not None:
            dataset = replace(dataset, name=name, contents_checked=True)
        dataset = _truncated_at(dataset, time_limit)
        return _checked(_keep_leaves(dataset, observation_leaves), observation_space, action_space)
    if isinstance(dataset, str) and (found := _file_reader(dataset)) is not None:
        read, source = found
        options |= splitting | {"name": name or (dataset if d4rl_file(dataset) else None)}
        options |= {"observation_leaves": observation_leaves}
        return _cached(partial(read, **options), cache, source, options)
    if isinstance(dataset, str) and is_pickle(dataset):
        _refuse(split_on_discontinuity, "split_on_discontinuity", "buffers, whose episodes are marked")
        _refuse(cache is not None, "cache", "a pickle; call .save(folder) on the result")
        file = existing_file(dataset)
        if not trust:
            raise ConfigError(
                f"{file} is a pickle, a program that runs when it is read; if you trust whoever wrote it, pass "
                f"trust=True, or load it with Stable-Baselines3 and pass model.replay_buffer"
            )
        return _keep_leaves(read_buffer(file, **options), observation_leaves)
    if isinstance(dataset, str) or _is_minari(dataset):
        _refuse(split_on_discontinuity, "split_on_discontinuity", "Minari data, whose episodes are stored one by one")
        minari_dataset = open_minari(dataset) if isinstance(dataset, str) else dataset
        key: dict[str, Any] = {"leaves": observation_leaves, "time_limit": time_limit, "name": name}
        reader = partial(_from_minari, minari_dataset, **key)
        data = _cached(reader, cache, _minari_key(minari_dataset), key)
        return _checked(data, observation_space, action_space)
    _refuse(cache is not None, "cache", "data in memory; call .save(folder) on the result")
    if is_buffer(dataset):
        _refuse(split_on_discontinuity, "split_on_discontinuity", "buffers, whose episodes are marked")
        return _keep_leaves(trajectories_from_buffer(dataset, **options), observation_leaves)
    options |= {"observation_leaves": observation_leaves}
    if is_dataset(dataset):
        return trajectories_from_dataset(dataset, **options, **splitting)
    if isinstance(dataset, Mapping):
        return trajectories_from_d4rl(dataset, **options | splitting | {"name": name or "dict"})
    if isinstance(dataset, Iterable):
        _refuse(split_on_discontinuity, "split_on_discontinuity", "episodes, which are split already")
        return trajectories_from_episodes(dataset, **options | {"name": name or "episodes"})
    raise DataError(
        f"cannot read a dataset from {type(dataset).__name__}; pass a Minari, D4RL or OGBench id, a path "
        f"({', '.join(_FORMATS)}, or a folder), a MinariDataset, a datasets.Dataset, a buffer of Stable-Baselines3, a "
        f"D4RL-style dict, or a list of episode dicts"
    )


def _holds_trajectories(dataset: str) -> bool:
    """Whether a path names a folder that ``Trajectories.save`` wrote.

    Raises:
        DataError: for a path that the system refuses to look at: its names are too long, a folder may not be read.
    """
    try:
        return (Path(dataset).expanduser() / DESCRIPTION).is_file()
    except OSError as error:
        raise DataError(f"{shown(dataset)} is no path that can be read: {error.strerror}; check it") from error


def _file_reader(dataset: str) -> tuple[Callable[..., Trajectories], list[Any]] | None:
    """Reader of the files that a path or an id names, and what a cache knows them by; None for what Minari may know.

    Raises:
        DataError: for a path that is not there, or that holds nothing that can be read.
    """
    path = Path(dataset).expanduser()
    if is_table(path):
        return partial(read_table, path), list(map(_file_key, table_files(path)))
    if (reader := _FORMATS.get(path.suffix.lower())) is not None:
        return partial(reader, path), [_file_key(existing_file(path))]
    if is_pickle(path) or _holds_minari(path):
        return None
    # Minari, slow to import, is asked only where it matters, and before an id is refused
    ogbench = dataset.startswith(OGBENCH) and not _is_local_minari(dataset)
    if ogbench and (file := ogbench_file(dataset)) is not None:
        if not file.is_file():
            raise missing_file(dataset, file)
        return partial(read_ogbench, dataset, file), [_file_key(file), dataset]  # a file has several tasks
    if (file := d4rl_file(dataset)) is not None:
        if file.is_file():
            return partial(read_d4rl_file, file), [_file_key(file)]
        if not _is_local_minari(dataset):
            raise DataError(
                f"the D4RL data set {dataset!r} is not on this machine: there is no file {file}; download it there, "
                f"set D4RL_DATASET_DIR to the folder that holds it, or pass the path of another file"
            )
    elif path.exists() and not _is_local_minari(dataset):
        raise DataError(
            f"{path} is neither a file that can be read ({', '.join(_FORMATS)}) nor a folder of trajectories, Minari "
            f"data, Parquet files or datasets.save_to_disk"
        )
    elif re.search(_VERSION, dataset) is None:
        raise DataError(
            f"there is no file or folder {path}; check the path (ids of Minari and D4RL end in -v0, -v1, ...)"
        )
    return None


def _holds_minari(folder: Path) -> bool:
    return (folder / "data" / "metadata.json").is_file()


def _is_local_minari(dataset: str) -> bool:
    from minari.storage import get_dataset_path  # slow to import

    return _holds_minari(get_dataset_path(dataset))


# Minari ------------------------------------------------------------


def open_minari(dataset: str) -> Any:
    """The ``MinariDataset`` of an id or folder on this machine; nothing is ever downloaded.

    Raises:
        DataError: at once, with the command that fetches the data or the closest local ids.
    """
    import minari  # slow to import and needed for Minari data only
    from minari.storage import get_dataset_path

    folder = Path(dataset).expanduser()
    if not _holds_minari(folder):
        restore_minari(dataset)
        folder = get_dataset_path(dataset)
    if not _holds_minari(folder):
        local = _local_minari_ids(get_dataset_path())
        hint = f" On this machine: {did_you_mean(dataset, local)}" if local else ""
        raise DataError(
            f"the Minari data set {dataset!r} is not in {get_dataset_path()}; with network access run "
            f"`minari download {dataset}`, or set MINARI_DATASETS_PATH.{hint}"
        )
    try:
        return minari.MinariDataset(folder / "data")
    except Exception as error:  # Minari raises asserts, KeyErrors and ValueErrors for damaged or too new metadata
        raise DataError(f"the Minari data set {dataset!r} in {folder} cannot be opened: {one_line(error)}") from error


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
    with _damage(name):
        indices = [int(index) for index in dataset.episode_indices]
        if not indices:
            raise DataError(f"{name}: holds no episode; nothing can be learned from it")
        raw = dataset.storage.read_raw_metadata(dataset.storage.data_path)
        full_space, action_space, total_steps = dataset.observation_space, dataset.action_space, dataset.total_steps
        env_spec = raw.get("env_spec")
        env_id = str(json.loads(env_spec)["id"]) if env_spec else None
        read_space = prune_space(full_space, leaves)
        for file in sorted(Path(dataset.storage.data_path).glob("*.hdf5")):
            check_file(file)
        lengths = [
            int(metadata["total_steps"])
            for some in _batches(indices)
            for metadata in dataset.storage.get_episode_metadata(some)
        ]
    writer = TrajectoryWriter(lengths, read_space, action_space, name=name, allocate=allocate)
    read = 0
    for index, length, episode in zip(indices, lengths, _episodes(dataset, indices, name), strict=True):
        if len(episode.rewards) != length:
            raise DataError(
                f"{name}: episode {index} has {len(episode.rewards)} steps on reading, its metadata say {length}; "
                f"Minari's {raw.get('data_format')} reader cuts episodes above 32,767 steps: store the data as hdf5"
            )
        observations = leaf_values(full_space, episode.observations)
        writer.add(
            nest_leaves(read_space, observations),
            episode.actions,
            episode.rewards,
            episode.terminations,
            episode.truncations,
            time_limit=time_limit,
        )
        read += length
    if read != total_steps:
        raise DataError(f"{name}: episodes hold {read} steps, the metadata say {total_steps}; write the set again")
    named = ("ref_min_score", "ref_max_score", "algorithm_name", "eval_env_spec")
    facts = {key: raw[key] for key in named if raw.get(key) is not None and raw[key] != env_spec}
    return writer.finish(
        env_id=env_id,
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
    except OUR_ERRORS:
        raise
    except Exception as error:  # edited files make Minari, h5py and pyarrow raise anything
        raise DataError(
            f"{name}: the stored episodes are damaged ({error_line(error)}); download or record the set again"
        ) from error


# Leaves, spaces, cache ------------------------------------------------------------


def _truncated_at(data: Trajectories, time_limit: int | None) -> Trajectories:
    """The same data, where an episode of ``time_limit`` steps counts as truncated."""
    if time_limit is None:
        return data
    check_time_limit(data.lengths, time_limit, data.name)
    ends = data.offsets[1:][data.lengths == time_limit] - 1
    terminations, truncations = np.array(data.terminations), np.array(data.truncations)
    terminations[ends], truncations[ends] = False, True
    return replace(data, terminations=terminations, truncations=truncations, contents_checked=True)


def _keep_leaves(data: Trajectories, leaves: Sequence[str] | None) -> Trajectories:
    if leaves is None:
        return data
    space = prune_space(data.observation_space, leaves)
    observations = {path: data.observations[path] for path in leaf_spaces(space)}
    return replace(data, observations=observations, observation_space=space, contents_checked=True)


def _checked(data: Trajectories, observation_space: Space | None, action_space: Space | None) -> Trajectories:
    for role, given, stored in (
        ("observation", observation_space, data.observation_space),
        ("action", action_space, data.action_space),
    ):
        if given is not None and given != stored and not _same_layout(given, stored):
            hint = "use matching data"
            if f"{role}_space" in data.guesses:
                hint = f"it was guessed: load the source again with {role}_space"
            raise DataError(f"{data.name}: the {role} space of the data is {stored}, expected {given}; {hint}")
    if observation_space is None and action_space is None:
        return data
    known = {"observation_space": observation_space, "action_space": action_space}
    guesses = {key: guess for key, guess in data.guesses.items() if known.get(key) is None}
    data = replace(data, guesses=guesses, contents_checked=True)
    if action_space is not None and action_space != data.action_space:
        check_actions(data, action_space)
    return in_spaces(
        data,
        data.observation_space if observation_space is None else observation_space,
        data.action_space if action_space is None else action_space,
    )


def _same_layout(given: Space, stored: Space) -> bool:
    """Equal up to the bounds and float width of Boxes, and classes that are given beside those stored."""
    left, right = leaf_spaces(given), leaf_spaces(stored)
    return list(left) == list(right) and all(_same_leaf(leaf, right[path]) for path, leaf in left.items())


def _same_leaf(given: Space, stored: Space) -> bool:
    match given, stored:
        case gym.spaces.Box(), gym.spaces.Box():
            return given.shape == stored.shape and np.dtype(given.dtype).kind == np.dtype(stored.dtype).kind
        case gym.spaces.Discrete(), gym.spaces.Discrete():
            return bool(given.start <= stored.start and stored.start + stored.n <= given.start + given.n)
        case gym.spaces.MultiDiscrete(), gym.spaces.MultiDiscrete():
            return given.shape == stored.shape and bool(
                (given.start <= stored.start).all() and (stored.start + stored.nvec <= given.start + given.nvec).all()
            )
    return given == stored


def _refuse(condition: bool, option: str, why: str) -> None:
    if condition:
        raise ConfigError(f"{option} does not apply to {why}")


class _FileKey(NamedTuple):
    """What tells the content of a file from an earlier one without reading it."""

    path: str
    size: int
    changed: int


def _file_key(path: Path) -> _FileKey:
    status = path.stat()
    return _FileKey(str(path.resolve()), status.st_size, status.st_mtime_ns)


def _file_keys(source: Any) -> Iterator[_FileKey]:
    """The keys of all files in what a cache knows a source by."""
    if isinstance(source, _FileKey):
        yield source
    elif isinstance(source, list):
        for each in source:
            yield from _file_keys(each)


def _minari_key(dataset: Any) -> list[Any]:
    data_path = Path(dataset.storage.data_path)
    files = sorted(path for path in data_path.glob("*") if path.is_file())
    return [[_file_key(path) for path in files], [int(index) for index in dataset.episode_indices]]


def _in_key(value: Any) -> str:
    """An option as text, a space with all of its bounds: printing a large one leaves most of them out."""
    return space_to_json(value) if isinstance(value, gym.Space) else str(value)


def _cached(
    read: Callable[..., Trajectories],
    cache: str | os.PathLike[str] | None,
    source: list[Any],
    options: Mapping[str, Any],
) -> Trajectories:
    """``read()``, or the memory-mapped copy in the cache, written first when it is not there yet or damaged."""
    check(cache, str | os.PathLike[str] | None, "cache")
    if cache is None:
        return read()
    folder = Path(cache)
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not there.is_dir():
        raise ConfigError(f"cache={os.fspath(cache)!r}: {there} is a file, and copies need a folder; choose another")
    key = json.dumps([source, dict(options)], sort_keys=True, default=_in_key)
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    target = folder / f"{_COPY}{digest}"
    with suppress(DataError):  # there is no copy yet, or a damaged one, which is written anew
        return Trajectories.open(target)
    with file_lock(folder / ".lock", f"the cache {folder}", DataError, wait=True):
        with suppress(DataError):  # another process wrote the same copy meanwhile
            return Trajectories.open(target)
        files = {file.path: list(file) for file in _file_keys(source)}
        _tidy(folder, files)
        with replacing_folder(target) as temporary:

            def allocate(file: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
                if 0 in shape:
                    return np.empty(shape, dtype)
                return np.lib.format.open_memmap(temporary / file, mode="w+", dtype=dtype, shape=shape)

            (temporary / _SOURCE).write_text(json.dumps(list(files.values())))
            filled = read(allocate=allocate)
            np.save(temporary / "offsets.npy", filled.offsets, allow_pickle=False)
            filled._describe(temporary)
            del filled
    return Trajectories.open(target)


def _tidy(folder: Path, files: Mapping[str, list[Any]]) -> None:
    """Remove what killed processes left in a cache, and copies of earlier contents of these files."""
    unfinished = (re.fullmatch(rf"\.({_COPY}[0-9a-f]+)\..*", each.name) for each in folder.iterdir())
    remove_left_overs(*{folder / found[1] for found in unfinished if found})
    for copy in folder.glob(f"{_COPY}*"):
        with suppress(DataError, TypeError, LookupError):  # copies of older releases say nothing of their source
            copied = read_json(copy / _SOURCE, DataError, "load the source again")
            if any(files.get(file[0], file) != file for file in copied):
                shutil.rmtree(copy, ignore_errors=True)
