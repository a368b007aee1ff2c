"""Folders of trajectories, of ``Trajectories.save`` and of caches: one ``.npy`` per leaf and a JSON description."""

import hashlib
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import UnionType
from typing import Any

import gymnasium as gym
import numpy as np

from rltransformers.core.errors import DataError
from rltransformers.core.files import check_folder, file_lock, read_json, remove_left_overs, replacing_folder
from rltransformers.core.ranges import shown
from rltransformers.core.spaces import leaf_spaces, space_from_json, space_to_json
from rltransformers.core.values import Array
from rltransformers.data.checks import damage
from rltransformers.data.spaces import Options
from rltransformers.data.trajectories import Trajectories

FORMAT = "rltransformers-trajectories"
FORMAT_VERSION = 2
DESCRIPTION = "trajectories.json"
DESCRIBED: dict[str, type | UnionType] = {
    "observation_space": str,
    "action_space": str,
    "name": str,
    "env_id": str | None,
    "env_spec": str | None,
    "final_observations": bool,
    "metadata": dict,
    "guesses": dict,
    "checksums": dict,
}
"""Keys of the description beside format and version, and the types of their values."""
ARRAYS = ("rewards", "terminations", "truncations", "offsets")
_COPY, _SOURCE = "trajectories-", "source.json"
"""Of a cache: how folders of copies begin, and the file in them with the files that were copied."""


def save_trajectories(data: Trajectories, folder: str | os.PathLike[str], overwrite: bool) -> Path:
    """Do what ``Trajectories.save`` says."""
    target = Path(folder)
    if target.exists() and not overwrite:
        raise DataError(f"{target} exists; pass overwrite=True or another folder")
    if target.exists() and not (target / DESCRIPTION).is_file():
        raise DataError(f"{target} exists and holds no trajectories; it is not overwritten: choose another folder")
    arrays = {f"{name}.npy": getattr(data, name) for name in ARRAYS}
    for kind in ("observations", "actions"):
        arrays |= {f"{kind}.{i}.npy": leaf for i, leaf in enumerate(getattr(data, kind).values())}
    with replacing_folder(target) as temporary:
        for file, array in arrays.items():
            np.save(temporary / file, array, allow_pickle=False)
        _describe(data, temporary)
    return target


def _describe(data: Trajectories, folder: Path) -> None:
    """Write the description of trajectories whose arrays lie in the folder."""
    description = {"format": FORMAT, "version": FORMAT_VERSION}
    description |= {key: getattr(data, key) for key in DESCRIBED if key != "checksums"}
    description |= {key: space_to_json(getattr(data, key)) for key in ("observation_space", "action_space")}
    description |= {key: dict(getattr(data, key)) for key in ("metadata", "guesses")}
    description["checksums"] = {file.name: _checksum(file) for file in sorted(folder.glob("*.npy"))}
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=1))


def open_trajectories(folder: str | os.PathLike[str], mmap: bool = True) -> Trajectories:
    """Do what ``Trajectories.open`` says."""
    path = Path(folder)
    description = read_json(path / DESCRIPTION, DataError, "Trajectories.save writes a folder with it")
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise DataError(f"{path / DESCRIPTION} does not describe trajectories of this library")
    if description.get("version") != FORMAT_VERSION:
        raise DataError(
            f"{path} has format version {description.get('version')}, this release reads {FORMAT_VERSION}; "
            f"load the source again"
        )
    for key, kind in DESCRIBED.items():
        if key not in description or not isinstance(description[key], kind):
            wrong = f"holds {shown(description[key])} as" if key in description else "lacks"
            raise DataError(f"{path / DESCRIPTION} {wrong} {key!r}: it is damaged; load the source again")
    facts: dict[str, Any] = {key: description[key] for key in DESCRIBED}
    checksums = facts.pop("checksums")

    def read(file: str) -> Array:
        with damage(f"{path / file} is missing or damaged", "load the source again"):
            if _checksum(path / file) != checksums.get(file):
                raise ValueError("its content is not what was written")
            # Mapping compares the shape in the header with the size of the file, reading would allocate it.
            array: Array = np.load(path / file, mmap_mode="c", allow_pickle=False)
            return array if mmap else np.array(array)

    for role in ("observation", "action"):
        space = facts[f"{role}_space"] = space_from_json(facts[f"{role}_space"])
        facts[f"{role}s"] = {leaf: read(f"{role}s.{i}.npy") for i, leaf in enumerate(leaf_spaces(space))}
    facts |= {name: read(f"{name}.npy") for name in ARRAYS}
    return Trajectories(**facts | {"offsets": np.array(facts["offsets"])})


def _checksum(file: Path) -> int:
    """CRC-32 of the content of a file."""
    checksum = 0
    with file.open("rb") as stream:
        while piece := stream.read(2**16):
            checksum = zlib.crc32(piece, checksum)
    return checksum


def cached(
    read: Callable[[Options], Trajectories], cache: str | os.PathLike[str], source: list[Any], options: Options
) -> Trajectories:
    """Return the memory-mapped copy of a source in a cache; write it first when it is missing or damaged.

    Args:
        source: its files, of which another size or time of change makes another copy, and what else identifies it.
    """
    folder = check_folder(cache, "cache")
    paths = [part for part in source if isinstance(part, Path)]
    files = {str(path.resolve()): [path.stat().st_size, path.stat().st_mtime_ns] for path in paths}
    others = [part for part in source if not isinstance(part, Path)]
    key = json.dumps([list(files.items()), others, vars(options)], sort_keys=True, default=_in_key)
    target = folder / f"{_COPY}{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    with suppress(DataError):  # there is no copy yet, or a damaged one, which is written anew
        return open_trajectories(target)
    with file_lock(folder / ".lock", f"the cache {folder}", DataError, wait=True):
        with suppress(DataError):  # another process wrote the same copy meanwhile
            return open_trajectories(target)
        _tidy(folder, files)
        with replacing_folder(target) as temporary:

            def allocate(file: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
                return np.lib.format.open_memmap(temporary / file, mode="w+", dtype=dtype, shape=shape)

            (temporary / _SOURCE).write_text(json.dumps(files))
            data = read(replace(options, allocate=allocate))
            np.save(temporary / "offsets.npy", data.offsets, allow_pickle=False)
            _describe(data, temporary)
            del data
    return open_trajectories(target)


def _in_key(value: Any) -> str:
    """Return an option as text, a space with all of its bounds: printing a large one leaves most of them out."""
    return space_to_json(value) if isinstance(value, gym.Space) else str(value)


def _tidy(folder: Path, files: Mapping[str, list[int]]) -> None:
    """Remove what killed processes left in a cache, and copies of earlier contents of these files."""
    unfinished = (re.fullmatch(rf"\.({_COPY}[0-9a-f]+)\..*", path.name) for path in folder.iterdir())
    remove_left_overs(*{folder / match[1] for match in unfinished if match})
    for copy in folder.glob(f"{_COPY}*"):
        with suppress(DataError, TypeError, AttributeError):  # a damaged copy
            past = read_json(copy / _SOURCE, DataError, "load the source again")
            if any(files.get(file, stamp) != stamp for file, stamp in past.items()):
                shutil.rmtree(copy, ignore_errors=True)
