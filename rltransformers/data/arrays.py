"""Arrays in an ``.npz`` file, of which large ones are read in slices; nothing in the file is executed."""

import math
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import IO, Any

import numpy as np

from rltransformers.core.errors import DataError
from rltransformers.core.files import existing_file
from rltransformers.core.spaces import nest_paths
from rltransformers.core.values import Array
from rltransformers.data.checks import damage
from rltransformers.data.hdf5 import MAX_INFLATION
from rltransformers.data.keys import NAMES
from rltransformers.data.spaces import CHUNK_BYTES, Sliced

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def nested(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays whose keys are paths below the observations or the actions, as nested dicts."""
    leaves: dict[str, dict[str, Any]] = {}
    result: dict[str, Any] = {}
    for key, array in arrays.items():
        kind, slash, path = key.partition("/")
        if slash and path and any(kind in names for names in NAMES.values()):
            leaves.setdefault(kind, {})[path] = array
        else:
            result[key] = array
    for kind, parts in leaves.items():
        if kind in result:
            raise DataError(f"holds both {kind!r} and leaves below it ({sorted(parts)}); keep one of the two")
        result[kind] = nest_paths(parts)
    return result


@contextmanager
def opened_npz(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The arrays of a file, of which the large ones are read within the block."""
    file = existing_file(path)
    with _damage(file):
        archive = zipfile.ZipFile(file)
    with archive, ExitStack() as streams:
        arrays: dict[str, Any] = {}
        for member in archive.infolist():
            key = member.filename.removesuffix(".npy")
            if key == member.filename:
                raise DataError(f"{file}: {member.filename!r} is no array; numpy.savez writes such files")
            with _damage(file):
                arrays[key] = _member(archive, member, f"{file}: {key}")
            if isinstance(arrays[key], _Rows):
                streams.callback(arrays[key].close)
        yield arrays


def _damage(file: object) -> AbstractContextManager[None]:
    return damage(f"{file} is truncated or no .npz file", "write it again with numpy.savez")


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, where: str) -> Any:
    """One array, a large one in pieces; its stated size is compared with the bytes that are there before it is read."""
    if member.file_size > MAX_INFLATION * max(member.compress_size, 1):
        raise DataError(f"{where} states {member.file_size:,} bytes and stores {member.compress_size:,}; it is damaged")
    with archive.open(member) as stream:
        read = _HEADERS.get(np.lib.format.read_magic(stream))
        if read is None:
            raise DataError(f"{where} has records with names of their own; store arrays of numbers")
        shape, by_columns, dtype = read(stream)
        start = stream.tell()
    if dtype.hasobject:
        raise DataError(f"{where} holds pickled objects, which are not read; store arrays of numbers")
    size = math.prod(shape) * dtype.itemsize
    if size > member.file_size:
        raise DataError(f"{where} states the shape {shape} of {dtype}, more than is stored; the file is damaged")
    if size > CHUNK_BYTES and not by_columns:
        return _Rows(archive, member, shape, dtype, start)
    with archive.open(member) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


class _Rows(Sliced):
    """An array in a file, read quickly from the first row to the last."""

    def __init__(
        self,
        archive: zipfile.ZipFile,
        member: zipfile.ZipInfo,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        start: int,
    ) -> None:
        self.archive, self.member, self.start = archive, member, start
        self.shape, self.dtype = shape, dtype
        self.row_bytes = math.prod(shape[1:]) * dtype.itemsize
        self.stream: IO[bytes] | None = None

    def read(self, start: int, stop: int) -> Array:
        with _damage(self.archive.filename):
            stream = self._stream_at(self.start + start * self.row_bytes)
            content = stream.read((stop - start) * self.row_bytes)
            if stop == len(self):
                stream.read(1)  # compares the checksum
                self.close()
        if len(content) < (stop - start) * self.row_bytes:
            raise DataError(f"{self.archive.filename} is truncated; write it again with numpy.savez")
        return np.frombuffer(content, self.dtype).reshape(stop - start, *self.shape[1:])

    def _stream_at(self, position: int) -> IO[bytes]:
        """The bytes from ``position`` on; those before are read: Python 3.12 compares no checksum after a seek."""
        if self.stream is not None and self.stream.tell() > position:
            self.close()
        if self.stream is None:
            self.stream = self.archive.open(self.member)
        while (skipped := position - self.stream.tell()) > 0:
            if not self.stream.read(min(skipped, CHUNK_BYTES)):
                break  # the file ends before
        return self.stream

    def close(self) -> None:
        """Let go of the file, until rows are read again."""
        if self.stream is not None:
            self.stream.close()
            self.stream = None
