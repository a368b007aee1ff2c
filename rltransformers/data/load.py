"""Any supported source of logged episodes as ``Trajectories``; a kind is a row of ``SOURCES`` and a function."""

import io
import os
import pickle
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rltransformers.core.errors import ConfigError, DataError
from rltransformers.core.files import existing_file, is_pickle
from rltransformers.core.ranges import Count, check, shown, suggesting
from rltransformers.core.registry import OGBENCH
from rltransformers.core.spaces import Space, leaf_spaces
from rltransformers.data.arrays import nested, opened_npz
from rltransformers.data.buffers import is_buffer, trajectories_from_buffer
from rltransformers.data.checks import check_actions, check_layout_of, check_time_limit, damage
from rltransformers.data.d3rlpy import is_dump, is_replay, trajectories_from_dump, trajectories_from_replay
from rltransformers.data.d4rl import d4rl_arrays, d4rl_file, existing_d4rl_file, read_d4rl_id
from rltransformers.data.folders import DESCRIPTION, cached
from rltransformers.data.hdf5 import opened_hdf5
from rltransformers.data.items import read_json, read_jsonl, trajectories_from_arrays, trajectories_from_items
from rltransformers.data.lerobot import is_lerobot, lerobot_files, read_lerobot
from rltransformers.data.minari import is_local_minari, minari_files, read_minari
from rltransformers.data.ogbench import (
    existing_ogbench_file,
    is_recording,
    ogbench_file,
    read_ogbench,
    trajectories_from_recording,
)
from rltransformers.data.robomimic import has_demos, trajectories_from_demos
from rltransformers.data.spaces import Options, prune_space
from rltransformers.data.steps import csv_files, is_frame, read_csv, trajectories_from_frame
from rltransformers.data.tables import (
    is_arrow,
    is_dataset,
    is_table,
    read_table,
    table_files,
    trajectories_from_arrow,
    trajectories_from_dataset,
)
from rltransformers.data.trajectories import Trajectories
from rltransformers.data.writer import fit_leaf, mark_ends

HDF5 = (".hdf5", ".h5", ".hdf")
CSV = (".csv", ".csv.gz", ".tsv")
JSONL = (".jsonl", ".ndjson")
FILES = (*HDF5, ".npz", *CSV, *JSONL, ".json", ".parquet", ".arrow", ".feather")
"""Endings of files that can be read."""


@dataclass(frozen=True)
class Source:
    """One kind of source.

    Attributes:
        knows: whether a dataset is of this kind.
        reads: the dataset as trajectories.
        refuses: options that do not apply, and to what they do not.
        files: what a cache knows the dataset by: its files, and whatever else says which of their contents it is. Such
            a source is read where ``Options.allocate`` says.
        has_columns: whether it may be a table of named columns, to which ``columns`` applies.
    """

    knows: Callable[[Any], bool]
    reads: Callable[[Any, Options], Trajectories]
    refuses: Mapping[str, str] = field(default_factory=dict)
    files: Callable[[Any], list[Any]] | None = None
    has_columns: bool = True


def _is_path(knows: Callable[[Path], bool]) -> Callable[[Any], bool]:
    return lambda dataset: isinstance(dataset, str) and knows(Path(dataset).expanduser())


def _ends_with(*suffixes: str) -> Callable[[Any], bool]:
    return _is_path(lambda path: path.name.lower().endswith(suffixes))


def _holds_trajectories(path: Path) -> bool:
    """Whether a path names a folder that ``Trajectories.save`` wrote."""
    try:
        return (path / DESCRIPTION).is_file()
    except OSError as error:  # names that are too long, a folder that may not be read
        raise DataError(f"{shown(os.fspath(path))} is no path that can be read: {error.strerror}; check it") from error


def _read_trajectories(data: Trajectories | str, options: Options) -> Trajectories:
    """Read trajectories, or a folder that ``Trajectories.save`` wrote."""
    if isinstance(data, str):
        data = Trajectories.open(Path(data).expanduser())
    if options.name is not None:
        data = replace(data, name=options.name, verify=False)
    if options.time_limit is not None:
        check_time_limit(data.lengths, options.time_limit, data.name)
        terminations, truncations = np.array(data.terminations), np.array(data.truncations)
        mark_ends(terminations, truncations, data.offsets, options.time_limit)
        data = replace(data, terminations=terminations, truncations=truncations, verify=False)
    if options.observation_leaves is not None:
        space = prune_space(data.observation_space, options.observation_leaves)
        observations = {path: data.observations[path] for path in leaf_spaces(space)}
        data = replace(data, observations=observations, observation_space=space, verify=False)
    wanted = options.observation_space
    wanted = None if wanted is None else prune_space(wanted, options.observation_leaves)
    return in_spaces(data, wanted, options.action_space)


def in_spaces(data: Trajectories, observation_space: Space | None, action_space: Space | None) -> Trajectories:
    """Present the data in spaces of other bounds, widths of numbers and further classes; None changes nothing."""
    changes: dict[str, Any] = {}
    for role, space in (("observation", observation_space), ("action", action_space)):
        if space is None:
            continue
        stored = getattr(data, f"{role}_space")
        check_layout_of(space, stored, role, data.name, guessed=f"{role}_space" in data.guesses)
        if role == "action" and space != stored:
            check_actions(data, space)
        rows = getattr(data, f"{role}s")
        fitted = {path: fit_leaf(leaf, rows[path]) for path, leaf in leaf_spaces(space).items()}
        changes |= {f"{role}_space": space, f"{role}s": fitted}
    if not changes:
        return data
    guesses = {key: guess for key, guess in data.guesses.items() if key not in changes}
    return replace(data, **changes, guesses=guesses, verify=False)


def _is_ogbench(dataset: Any) -> bool:
    if not isinstance(dataset, str) or not Path(dataset).name.startswith(OGBENCH) or is_local_minari(dataset):
        return False
    return ogbench_file(dataset) is not None


def read_hdf5(path: str, options: Options) -> Trajectories:
    """Read an HDF5 file of D4RL, robomimic, LIBERO, ManiSkill or d3rlpy, or of arrays that ``columns`` names."""
    with opened_hdf5(path) as file:
        name = Path(file.filename).stem
        if options.columns is None and has_demos(file):
            return trajectories_from_demos(file, options, name)
        if options.columns is None and is_dump(file):
            return trajectories_from_dump(file, options, name)
        return trajectories_from_arrays(d4rl_arrays(file), options, name)


def read_npz(path: str, options: Options) -> Trajectories:
    """Read an ``.npz`` file of OGBench, or of arrays of N rows by the names of ``keys.NAMES``.

    Leaves of nested observations are arrays "observations/camera".
    """
    with opened_npz(path) as arrays:
        name = Path(path).stem
        if options.columns is None and is_recording(arrays):
            return trajectories_from_recording(arrays, options, name)
        return trajectories_from_arrays(nested(arrays), options, name, "npz")


def read_pickle(path: str, options: Options) -> Trajectories:
    """Read the buffer, the list of episodes or the dict in a pickle; reading it runs whatever code is in it."""
    file = existing_file(path)
    with damage(f"{file} cannot be unpickled", "save it again"), file.open("rb") as stream:
        content = pickle.load(stream)
    source = None if isinstance(content, str) else next((each for each in SOURCES if each.knows(content)), None)
    if source is None:
        raise DataError(f"{file} holds {type(content).__name__}, not a replay buffer, a list of episodes or a dict")
    _check_options(source, content, options)
    return source.reads(content, replace(options, name=options.name or file.stem))


def _check_options(source: Source, dataset: Any, options: Options, in_cache: bool = False) -> None:
    for option, chosen in (("split_on_discontinuity", options.split_on_discontinuity), ("cache", in_cache)):
        if chosen and option in source.refuses:
            raise ConfigError(f"{option} does not apply to {source.refuses[option]}")
    if options.columns is not None and not source.has_columns:
        raise ConfigError(
            f"columns applies to tables and lists of steps, and "
            f"{shown(dataset) if isinstance(dataset, str) else type(dataset).__name__} is none; leave it out"
        )


def _is_d4rl(dataset: Any) -> bool:
    file = d4rl_file(dataset) if isinstance(dataset, str) else None
    return file is not None and (file.is_file() or not is_local_minari(dataset))


def _is_minari(dataset: Any) -> bool:
    """Whether this is a data set of Minari or a text like its id; raises DataError for another text."""
    if not isinstance(dataset, str):
        return type(dataset).__name__ == "MinariDataset" and hasattr(dataset, "iterate_episodes")
    path = Path(dataset).expanduser()
    if path.exists() and not is_local_minari(dataset):
        raise DataError(
            f"{path} is neither a file that can be read ({', '.join(FILES)}) nor a folder of trajectories, Minari "
            f"or LeRobot data, CSV or Parquet files or datasets.save_to_disk; read it with pandas and pass the "
            f"DataFrame, or join files with Trajectories.concatenate(map(load_trajectories, files))"
        )
    if not path.exists() and re.search(r"-v\d+/?$", dataset) is None:
        raise DataError(f"there is no file or folder {path}; check the path (ids of Minari and D4RL end in -v0, ...)")
    return True


_MARKED = {"split_on_discontinuity": "buffers, whose episodes are marked"}
_SPLIT = {"split_on_discontinuity": "trajectories, which are split into episodes"}
_IN_MEMORY = {"cache": "data in memory; call .save(folder) on the result"}
_WHOLE = _SPLIT | {"cache": "trajectories; call .save(folder) on the result"}


def _file(dataset: str) -> list[Any]:
    return [existing_file(dataset)]


SOURCES = (
    Source(lambda dataset: isinstance(dataset, Trajectories), _read_trajectories, _WHOLE, has_columns=False),
    Source(_is_path(_holds_trajectories), _read_trajectories, _WHOLE, has_columns=False),
    Source(_is_path(is_lerobot), read_lerobot, files=lerobot_files),
    Source(_is_path(is_table), read_table, files=table_files),
    Source(_ends_with(*CSV), read_csv, files=_file),
    Source(_is_path(lambda path: path.is_dir() and any(path.glob("*.csv"))), read_csv, files=csv_files),
    Source(_ends_with(*JSONL), read_jsonl, files=_file),
    Source(_ends_with(".json"), read_json, files=_file),
    Source(_ends_with(*HDF5), read_hdf5, files=_file),
    Source(_is_ogbench, read_ogbench, files=lambda name: [existing_ogbench_file(name), name], has_columns=False),
    Source(_ends_with(".npz"), read_npz, files=_file),
    Source(_is_path(is_pickle), read_pickle, {"cache": "a pickle; call .save(folder) on the result"}),
    Source(_is_d4rl, read_d4rl_id, files=lambda name: [existing_d4rl_file(name), name], has_columns=False),
    Source(
        _is_minari,
        read_minari,
        {"split_on_discontinuity": "Minari data, whose episodes are stored one by one"},
        minari_files,
        has_columns=False,
    ),
    Source(is_buffer, trajectories_from_buffer, _MARKED | _IN_MEMORY, has_columns=False),
    Source(is_dataset, trajectories_from_dataset, _IN_MEMORY),
    Source(is_frame, trajectories_from_frame, _IN_MEMORY),
    Source(is_arrow, trajectories_from_arrow, _IN_MEMORY),
    Source(is_replay, trajectories_from_replay, _IN_MEMORY, has_columns=False),
    Source(lambda dataset: isinstance(dataset, Mapping), trajectories_from_arrays, _IN_MEMORY),
    Source(
        lambda dataset: isinstance(dataset, Iterable) and not isinstance(dataset, str),
        trajectories_from_items,
        _IN_MEMORY,
    ),
)


@suggesting
def load_trajectories(
    dataset: Any,
    *,
    observation_space: Space | None = None,
    action_space: Space | None = None,
    observation_leaves: Sequence[str] | None = None,
    name: str | None = None,
    time_limit: int | None = None,
    split_on_discontinuity: bool = False,
    columns: Mapping[str, Any] | None = None,
    cache: str | os.PathLike[str] | None = None,
    trust: bool = False,
) -> Trajectories:
    """Trajectories of ``dataset``, checked: shapes, finite numbers, classes inside their spaces, flags only at ends.

    Args:
        dataset: one of

            - a Minari id ("mujoco/hopper/medium-v0"), a D4RL id ("hopper-medium-v2") or an OGBench id with a task
              ("pointmaze-medium-navigate-singletask-task1-v0"), looked up on this machine only;
            - the path of an HDF5 file (.hdf5, .h5) of D4RL, robomimic, LIBERO, ManiSkill or d3rlpy, of flat arrays or
              a file of OGBench (.npz), of a table (.csv, .tsv, .json, .jsonl, .parquet, .arrow), of a folder of Minari,
              of LeRobot, of CSV files with an episode each, of Parquet files, of ``datasets.save_to_disk``, of
              ``Trajectories.save``, or with ``trust`` of a pickle;
            - a ``DataFrame`` or a list of them, an episode each; a table of pyarrow or polars; a list of steps: dicts,
              or tuples ``(o, a, r, o2, done)`` or ``(o, a, r, o2, terminated, truncated)``, or a list of such lists,
              an episode each;
            - a ``MinariDataset``, a ``datasets.Dataset``, a ``ReplayBuffer`` or ``RolloutBuffer`` of Stable-Baselines3,
              a ``ReplayBuffer`` of d3rlpy;
            - a D4RL-style dict: observations, actions, rewards, terminals, optionally timeouts, next_observations;
            - an iterable of episode dicts: observations (T + 1 rows, or T), actions, rewards, optionally terminations,
              truncations, next_observations; nested leaves are dicts or tuples of arrays. Usual other names of these
              are understood (``rltransformers.data.keys.NAMES``), infos are not read, and other keys are an error.
              Objects with such attributes are read, too: ``TrajectoryWithRew`` of imitation, ``Episode`` of d3rlpy;
            - ``Trajectories``.
        observation_space, action_space: those of the result, checked against the data (of a Box of observations not
            the bounds, which real ones exceed). Without them those that the source stores, or where the format stores
            none guessed ones (see ``rltransformers.data.spaces.infer_space``).
        observation_leaves: keep only these leaves ("image", "arm/joints") of nested observations, e.g. no text.
        name: how messages and tables call the data.
        time_limit: the environment's step limit, for sources that do not mark it: episodes of exactly that length count
            as truncated, longer ones are refused, and flat data without ``timeouts`` are cut there.
        split_on_discontinuity: see ``trajectories_from_d4rl``; AntMaze files need it.
        columns: what the columns of a table with a row per step hold: observations, actions, rewards, terminations,
            truncations, dones, next_observations, episode, step -> a column, a list of columns, "obs_*" for numbered
            ones, a dict of leaves, or None for nothing. The rest is guessed by usual names, and a warning says how.
        cache: a folder that keeps a memory-mapped copy of a file or Minari data set, under a name that changes with
            the source and the options; opening it again compares checksums. Sets larger than memory need it: HDF5
            files, .npz files and Minari sets are copied in pieces, tables and files of OGBench pass through memory
            once. Copies of earlier contents of the same files are removed when a new one is written.
        trust: read a pickle (.pkl) of ``save_replay_buffer``, of a list of episodes such as the data of the Decision
            Transformer's authors, or of a dict, which runs whatever code is in it.

    Raises:
        DataError: names the data set, the leaf, the episode and the step that break a rule, and the way out.
        ConfigError: for options that the source cannot take.
    """
    check(cache, str | os.PathLike[str] | None, "cache")
    if isinstance(dataset, os.PathLike | bytes):
        dataset = os.fsdecode(dataset)
    if isinstance(dataset, np.ndarray) and dataset.ndim == 0:  # what np.save makes of a dict
        dataset = dataset.item()
    if isinstance(dataset, io.IOBase):
        raise DataError(f"{shown(dataset)} is an open file; pass its path")
    time_limit = check(time_limit, Count | None, "time_limit")
    columns = check(columns, Mapping[str, Any] | None, "columns")
    options = Options(
        name, time_limit, observation_space, action_space, observation_leaves, split_on_discontinuity, columns
    )
    source = next((source for source in SOURCES if source.knows(dataset)), None)
    if source is None:
        raise DataError(
            f"cannot read a dataset from {type(dataset).__name__}; pass a Minari, D4RL or OGBench id, a path "
            f"({', '.join(FILES)}, or a folder), a MinariDataset, a datasets.Dataset, a buffer of Stable-Baselines3 or "
            f"d3rlpy, a DataFrame, a D4RL-style dict, or a list of episode dicts"
        )
    _check_options(source, dataset, options, cache is not None)
    if source.reads is read_pickle and not trust:
        raise ConfigError(
            f"{existing_file(dataset)} is a pickle, a program that runs when it is read; if you trust whoever wrote "
            f"it, pass trust=True (--trust on the command line), or load it yourself and pass what it holds: "
            "model.replay_buffer, a list of episodes"
        )
    if cache is None or source.files is None:
        return source.reads(dataset, options)
    return cached(partial(source.reads, dataset), cache, source.files(dataset), options)
