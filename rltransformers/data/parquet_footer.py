"""How many values a Parquet file states, read from its footer, a struct of Thrift's compact protocol.

pyarrow ends the process where it is asked about a column whose description is damaged.
"""

import io
from pathlib import Path
from typing import Any

_ROW_GROUPS, _COLUMNS, _DESCRIPTION, _NUM_VALUES = 4, 1, 3, 5
"""Numbers of fields: of the footer, of a row group, of a column in it, of its description."""
_TAIL = 8  # the length of the footer, and "PAR1"


def stated_values(file: Path) -> int:
    """Values of all columns in all row groups; raises ValueError for a footer that is cut or says something else."""
    with file.open("rb") as opened:
        end = opened.seek(-_TAIL, io.SEEK_END)
        length = int.from_bytes(opened.read(4), "little")
        opened.seek(end - length)
        footer = io.BytesIO(opened.read(length))
    try:
        columns = (column for group in _struct(footer)[_ROW_GROUPS] for column in group[_COLUMNS])
        return sum(max(0, column[_DESCRIPTION][_NUM_VALUES]) for column in columns)
    except (IndexError, KeyError, TypeError, RecursionError) as error:
        raise ValueError("its footer is damaged") from error


def _struct(source: io.BytesIO) -> dict[int, Any]:
    fields, number = {}, 0
    while (head := source.read(1)[0]) & 15:
        number = number + (head >> 4) if head >> 4 else _integer(source)
        fields[number] = _value(source, head & 15)
    return fields


def _value(source: io.BytesIO, kind: int) -> Any:
    """The value of a field; of kinds that are of no interest their bytes, of flags what was read or nothing."""
    if kind in (1, 2):  # a flag lies in the kind
        return kind == 1
    if kind in (4, 5, 6):
        return _integer(source)
    if kind in (3, 7, 13):
        return source.read({3: 1, 7: 8, 13: 16}[kind])
    if kind == 8:
        return source.read(_varint(source))
    if kind in (9, 10):
        return _list(source)
    if kind == 12:
        return _struct(source)
    raise ValueError(f"its footer holds a value of the unknown kind {kind}")


def _list(source: io.BytesIO) -> list[Any]:
    head = source.read(1)[0]
    size = head >> 4 if head >> 4 < 15 else _varint(source)
    if size > len(source.getbuffer()) - source.tell():  # an item has a byte or more
        raise ValueError(f"its footer states a list of {size:,} items")
    kind = 3 if head & 15 in (1, 2) else head & 15  # in a list a flag has a byte
    return [_value(source, kind) for _ in range(size)]


def _integer(source: io.BytesIO) -> int:
    number = _varint(source)
    return number >> 1 if number % 2 == 0 else -(number >> 1) - 1


def _varint(source: io.BytesIO) -> int:
    number = shift = 0
    while (byte := source.read(1)[0]) & 128:
        number |= (byte & 127) << shift
        shift += 7
    return number | byte << shift
