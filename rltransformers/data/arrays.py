"""Flat arrays in an ``.npz`` file as trajectories; nothing in the file is executed. Axis letter: N rows, one a step."""

import math
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rltransformers.core.errors import DataError
from rltransformers.core.files import existing_file
from rltransformers.core.spaces import nest_paths
from rltransformers.data.d4rl import trajectories_from_d4rl
from rltransformers.data.keys import NAMES
from rltransformers.data.trajectories import Trajectories

MAX_INFLATION = 2000
"""Bytes of an array per byte in the file; deflate reaches 1,032."""
_SUFFIX = ".npy"
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_DAMAGE = (OSError, ValueError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error, MemoryError)


def read_npz(path: str | os.PathLike[str], *, name: str | None = None, **options: Any) -> Trajectories:
    """Trajectories of an ``.npz`` file; ``options`` are those of ``trajectories_from_d4rl``.

    The arrays have N rows each and go by the names of ``keys.NAMES``: observations, actions, rewards, terminals (or
    terminations), optionally timeouts (or truncations) and next_observations. A leaf of a nested observation or action
    is an array called "observations/camera".

    Raises:
        DataError: when the file is missing, truncated, no ``.npz`` file, holds pickled objects, or lacks keys.
    """
    file = existing_file(path)
    return trajectories_from_d4rl(nested(_arrays(file)), name=name or file.stem, source="npz", **options)


def nested(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays whose keys are paths below the observations or the actions, as nested dicts."""
    leaves: dict[str, dict[str, Any]] = {}
    found: dict[str, Any] = {}
    for key, array in arrays.items():
        kind, slash, path = key.partition("/")
        if slash and path and any(kind in names for names in NAMES.values()):
            leaves.setdefault(kind, {})[path] = array
        else:
            found[key] = array
    for kind, parts in leaves.items():
        if kind in found:
            raise DataError(f"holds both {kind!r} and leaves below it ({sorted(parts)}); keep one of the two")
        found[kind] = nest_paths(parts)
    return found


def _arrays(file: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        with zipfile.ZipFile(file) as archive:
            found = {}
            for member in archive.infolist():
                key = member.filename.removesuffix(_SUFFIX)
                if key == member.filename:
                    raise DataError(f"{file}: {member.filename!r} is no array; numpy.savez writes such files")
                found[key] = _member(archive, member, f"{file}: {key}")
            return found
    except _DAMAGE as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{file} is truncated or no .npz file ({error}); write it again with numpy.savez") from error


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, where: str) -> npt.NDArray[Any]:
    """One array; its stated size is compared with the bytes that are there before it is asked for."""
    if member.file_size > MAX_INFLATION * max(member.compress_size, 1):
        raise DataError(f"{where} states {member.file_size:,} bytes and stores {member.compress_size:,}; it is damaged")
    with archive.open(member) as stream:
        read = _HEADERS.get(np.lib.format.read_magic(stream))
        if read is None:
            raise DataError(f"{where} has records with names of their own; store arrays of numbers")
        shape, _, dtype = read(stream)
    if dtype.hasobject:
        raise DataError(f"{where} holds pickled objects, which are not read; store arrays of numbers")
    if math.prod(shape) * dtype.itemsize > member.file_size:
        raise DataError(f"{where} states the shape {shape} of {dtype}, more than is stored; the file is damaged")
    with archive.open(member) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)
