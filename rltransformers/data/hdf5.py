"""HDF5 files: whether one keeps to itself, and many small arrays in one, several times faster than with the library.

The library spends some 100 microseconds on every array, more than CartPole needs for the few steps in it. Written is a
subset of the oldest version of the format; sections are those of "HDF5 File Format Specification Version 3.0".
"""

import itertools
import math
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from rltransformers.core.errors import DataError, error_line
from rltransformers.core.files import existing_file
from rltransformers.core.values import Array
from rltransformers.data.checks import damage

Tree: TypeAlias = "Mapping[str, Tree] | Array"

_UNDEFINED = 2**64 - 1
_NO_FREE_BLOCK = 1
_SYMBOLS = 8  # entries of a symbol-table node: 2 x the leaf K of the superblock
_CHILDREN = 32  # children of a B-tree node: 2 x the internal K of the superblock
_SUPERBLOCK_BYTES = 96
_DATASPACE, _DATATYPE, _FILL_VALUE, _LAYOUT, _ATTRIBUTE, _SYMBOL_TABLE = 0x01, 0x03, 0x05, 0x08, 0x0C, 0x11
_DEFAULT_FILL = struct.pack("<BBBBI", 2, 2, 2, 1, 0)  # IV.A.2.f: late allocation, the default value
MAX_INFLATION = 2000
"""Bytes of an array per byte in the file; deflate, which gzip and zip use, reaches 1,032."""
ALWAYS_READ = 64 * 2**20
"""Bytes of an array that are read whatever the file stores for them: an array never written to is all zeros."""


@contextmanager
def opened_hdf5(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open an HDF5 file for reading; DataError where it is damaged or reaches beyond itself (see ``check_file``)."""
    import h5py  # slow to import and needed for files only

    file_path = existing_file(path)
    with damage(f"{file_path} is truncated or no HDF5 file", "download it again"):
        check_file(file_path)
        file = h5py.File(file_path, "r", rdcc_nbytes=0)  # its 8 MiB per array stay full of chunks that are read once
    with file, damage(f"{file_path} is damaged", "download it again"):  # where an array cannot be read
        yield file


def lazy_tree(node: Any) -> Any:
    """A group as nested dicts of its arrays, which are read in slices; an array as it is."""
    import h5py

    if not isinstance(node, h5py.Group):
        return node
    if h5py.h5o.get_info(node.id).rc > 1:
        raise DataError(
            f"{node.file.filename}: the group {node.name!r} has several names, and may hold itself; write it once"
        )
    return {key: lazy_tree(child) for key, child in node.items()}


def check_file(path: str | os.PathLike[str]) -> None:
    """Raise DataError unless all that an HDF5 file holds lies in it, in sizes that its bytes can stand for."""
    import h5py  # slow to import
    from h5py import h5d, h5l, h5o

    def fault(name: bytes, link: Any) -> str | None:
        try:
            if link.type != h5l.TYPE_HARD:
                return f"{name.decode()!r} is a link to another file or name; only data inside the file are read"
            array = h5o.open(file.id, name)
            if not isinstance(array, h5d.DatasetID):
                return None
            how, stored = array.get_create_plist(), array.get_storage_size()
            if how.get_external_count() or how.get_layout() == h5d.VIRTUAL:
                return f"{name.decode()!r} has its values in other files; only data inside the file are read"
            chunk = math.prod(how.get_chunk()) if how.get_layout() == h5d.CHUNKED else 0
            stated = max(math.prod(array.shape or ()), chunk) * array.get_type().get_size()
            if stated > ALWAYS_READ + MAX_INFLATION * stored:
                return f"{name.decode()!r} states {stated:,} bytes and stores {stored:,}; it would exhaust memory"
        except Exception as error:  # raised in here it would be lost, or end in a SystemError
            return f"{name!r} is damaged ({error_line(error)}); download the file again"
        return None

    with h5py.File(path, "r") as file:
        first = file.id.links.visit(fault, info=True)
    if first is not None:
        raise DataError(f"{os.fspath(path)}: {first}")


class HDF5Writer:
    """Writes objects one after the other into a new binary ``file`` and returns their addresses; ``finish`` ends it."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.end = 0
        self._types: dict[np.dtype[Any], bytes] = {}
        self._heads: dict[tuple[tuple[int, ...], np.dtype[Any]], bytes] = {}  # of object headers, up to the address
        self._put(bytes(_SUPERBLOCK_BYTES))

    def tree(self, tree: Tree, attributes: Mapping[str, int] | None = None) -> int:
        """Nested groups of arrays; ``attributes`` (64-bit integers) belong to the outermost."""
        if isinstance(tree, Mapping):
            return self.group({name: self.tree(child) for name, child in tree.items()}, attributes)
        return self.array(tree)

    def array(self, values: Array) -> int:
        """An array of numbers or flags, of at least one axis."""
        address = self._put(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
        key = values.shape, values.dtype
        if key not in self._heads:
            header = _object(
                (_DATASPACE, _dataspace(values.shape)),
                (_DATATYPE, self._type(values.dtype)),
                (_FILL_VALUE, _DEFAULT_FILL),
                (_LAYOUT, struct.pack("<BB22x", 3, 1)),  # IV.A.2.i, class 1: contiguous; address and size follow
            )
            self._heads[key] = header[:-22]
        return self._put(self._heads[key] + struct.pack("<QQ6x", address, values.nbytes))

    def group(self, members: Mapping[str, int], attributes: Mapping[str, int] | None = None) -> int:
        """A group of the objects at these addresses, and attributes of it."""
        tree, heap = self._symbol_table({name.encode(): address for name, address in members.items()})
        described = [(_ATTRIBUTE, self._attribute(name, value)) for name, value in (attributes or {}).items()]
        return self._put(_object((_SYMBOL_TABLE, struct.pack("<QQ", tree, heap)), *described))

    def finish(self, root: int) -> None:
        """Writes the superblock (II.A, version 0), whose root group is that at ``root``."""
        versions = bytes([0, 0, 0, 0, 0, 8, 8, 0])
        ranks = struct.pack("<HHI", _SYMBOLS // 2, _CHILDREN // 2, 0)
        addresses = struct.pack("<QQQQ", 0, _UNDEFINED, self.end, _UNDEFINED)
        self.file.seek(0)
        self.file.write(b"\x89HDF\r\n\x1a\n" + versions + ranks + addresses + _symbol(0, root))
        self.file.flush()

    def _put(self, content: bytes | memoryview) -> int:
        """Appends, up to the next multiple of 8 bytes."""
        address, surplus = self.end, -len(content) % 8
        self.file.write(content)
        if surplus:
            self.file.write(bytes(surplus))
        self.end += len(content) + surplus
        return address

    def _type(self, dtype: np.dtype[Any]) -> bytes:
        """The datatype message (IV.A.2.d) that h5py describes ``dtype`` with, behind the two bytes of its encoding."""
        if dtype not in self._types:
            from h5py import h5t  # slow to import

            self._types[dtype] = h5t.py_create(dtype, logical=True).encode()[2:]
        return self._types[dtype]

    def _attribute(self, name: str, value: int) -> bytes:
        """IV.A.2.m, version 1."""
        label, kind, space = name.encode() + b"\0", self._type(np.dtype(np.int64)), _dataspace(None)
        sizes = struct.pack("<BxHHH", 1, len(label), len(kind), len(space))
        return sizes + _pad(label) + _pad(kind) + space + np.int64(value).tobytes()

    def _symbol_table(self, members: Mapping[bytes, int]) -> tuple[int, int]:
        """Addresses of the B-tree (III.A.1) over the members' symbol-table nodes (III.B), and of their names."""
        names = sorted(members)
        padded = [_pad(name + b"\0") for name in names]
        places = list(itertools.accumulate(map(len, padded), initial=8))  # the empty name comes first
        content = self._put(bytes(8) + b"".join(padded))
        # III.D, the heap of names
        heap = self._put(struct.pack("<4sB3xQQQ", b"HEAP", 0, places[-1], _NO_FREE_BLOCK, content))
        nodes: list[tuple[int, int]] = []  # (address, place of the largest name in it)
        for start in range(0, len(names), _SYMBOLS):
            part = range(start, min(start + _SYMBOLS, len(names)))
            symbols = b"".join(_symbol(places[i], members[names[i]]) for i in part)
            node = struct.pack("<4sBxH", b"SNOD", 1, len(part)) + symbols.ljust(40 * _SYMBOLS, b"\0")
            nodes.append((self._put(node), places[part[-1]]))
        level = 0
        while level == 0 or len(nodes) > 1:
            nodes = self._level(nodes, level)
            level += 1
        return nodes[0][0], heap

    def _level(self, children: Sequence[tuple[int, int]], level: int) -> list[tuple[int, int]]:
        """The nodes of the B-tree above ``children``; a key is the largest name to its left, the first is empty."""
        size = 24 + 16 * _CHILDREN + 8
        first, count = self.end, -(-len(children) // _CHILDREN)
        nodes, key = [], 0
        for index in range(count):
            part = children[index * _CHILDREN : (index + 1) * _CHILDREN]
            left = first + (index - 1) * size if index > 0 else _UNDEFINED
            right = first + (index + 1) * size if index < count - 1 else _UNDEFINED
            entries = struct.pack(f"<Q{2 * len(part)}Q", key, *itertools.chain.from_iterable(part))
            head = struct.pack("<4sBBHQQ", b"TREE", 0, level, len(part), left, right)
            key = part[-1][1]
            nodes.append((self._put((head + entries).ljust(size, b"\0")), key))
        return nodes


def _object(*messages: tuple[int, bytes]) -> bytes:
    """An object header (IV.A.1.a) with one reference to it."""
    padded = [(kind, _pad(content)) for kind, content in messages]
    body = b"".join(struct.pack("<HHB3x", kind, len(content), 0) + content for kind, content in padded)
    return struct.pack("<BxHII4x", 1, len(messages), 1, len(body)) + body


def _pad(content: bytes) -> bytes:
    return content + bytes(-len(content) % 8)


def _symbol(name: int, address: int) -> bytes:
    """III.C, without cached information."""
    return struct.pack("<QQ24x", name, address)


def _dataspace(shape: tuple[int, ...] | None) -> bytes:
    """IV.A.2.b, version 1; None is a single number."""
    axes = shape or ()
    return struct.pack(f"<BBB5x{len(axes)}Q", 1, len(axes), 0, *axes)
