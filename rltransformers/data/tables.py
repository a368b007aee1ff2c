"""Tables as trajectories: Parquet and Arrow files, and data sets of Hugging Face ``datasets``.

A table whose rewards are lists has one episode per row, any other one step per row.
"""

import io
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rltransformers.core.errors import ConfigError, DataError, require
from rltransformers.core.files import existing_file, read_json
from rltransformers.core.spaces import map_leaves
from rltransformers.data.arrays import nested
from rltransformers.data.checks import damage
from rltransformers.data.columns import STEPS, value_or_error
from rltransformers.data.episodes import trajectories_from_episodes
from rltransformers.data.keys import ENDS, NAMES, PER_STEP, is_ignored
from rltransformers.data.spaces import Options
from rltransformers.data.steps import starts_of, trajectories_from_steps
from rltransformers.data.trajectories import Trajectories

STATE, SPLITS, INFO = "state.json", "dataset_dict.json", "dataset_info.json"
"""Files of ``Dataset.save_to_disk`` in a folder: its files, its splits, its description."""
MAX_VALUES = 2000
"""Values of a table per byte of its file: more were never recorded, equal ones are stored once."""
ALWAYS_READ = 2**23
"""Values that are read whatever the file stores for them."""
_ROWS_AT_ONCE = 256


def is_table(path: Path) -> bool:
    """Whether a path names a Parquet or Arrow file, or a folder of ``save_to_disk`` or of Parquet files."""
    if path.is_dir():
        return any((path / name).is_file() for name in (STATE, SPLITS)) or any(path.glob("*.parquet"))
    return path.suffix.lower() in {".parquet", ".arrow", ".feather"}


def table_files(path: str | os.PathLike[str]) -> list[Path]:
    """The files that a table consists of, in their order."""
    path = Path(path).expanduser()
    if not path.is_dir():
        return [existing_file(path)]
    if (path / SPLITS).is_file():
        splits = _described(path / SPLITS).get("splits")
        if not isinstance(splits, list) or len(splits) != 1:
            raise DataError(f"{path} has the splits {splits}; pass the folder of one of them, e.g. {path}/train")
        path = path / Path(str(splits[0])).name
    if not (path / STATE).is_file():
        return sorted(path.glob("*.parquet"))
    listed = _described(path / STATE).get("_data_files")
    if not isinstance(listed, list) or not all(isinstance(each, dict) and "filename" in each for each in listed):
        raise DataError(f"{path / STATE} lists no files; save the data set again with save_to_disk")
    return [existing_file(path / Path(str(each["filename"])).name) for each in listed]


def read_table(path: str | os.PathLike[str], options: Options) -> Trajectories:
    """Read a Parquet or Arrow file, or a folder of them."""
    files = table_files(path)
    name = _configuration(files[0].parent / INFO) or Path(path).expanduser().stem
    return trajectories_from_tables([file_batches([file]) for file in files], options, name)


def is_dataset(value: object) -> bool:
    """Whether this is a ``Dataset`` or ``DatasetDict`` of Hugging Face."""
    module = sys.modules.get("datasets")  # who has such an object has imported it
    return module is not None and isinstance(value, module.Dataset | module.DatasetDict)


def trajectories_from_dataset(dataset: Any, options: Options) -> Trajectories:
    """Trajectories of a ``datasets.Dataset``, or of a ``DatasetDict`` with one split."""
    if isinstance(dataset, Mapping):
        if len(dataset) != 1:
            raise DataError(f"the data set has the splits {sorted(dataset)}; pass one of them, e.g. dataset['train']")
        (dataset,) = dataset.values()
    configuration = dataset.config_name
    name = configuration if configuration not in (None, "default") else "dataset"
    tables = dataset.with_format("arrow").iter(_ROWS_AT_ONCE)
    return trajectories_from_tables([(batch for table in tables for batch in table.to_batches())], options, name)


def is_arrow(value: object) -> bool:
    """Whether this is a table of pyarrow, polars or another library that hands out Arrow's streams."""
    return hasattr(value, "__arrow_c_stream__")


def trajectories_from_arrow(table: Any, options: Options) -> Trajectories:
    """Trajectories of such a table."""
    with damage(f"{type(table).__name__} is no table", "pass one with named columns"):
        table = require("pyarrow", "parquet").table(table)
    return trajectories_from_tables([table.to_batches()], options, "table")


def trajectories_from_tables(files: Iterable[Iterable[Any]], options: Options, name: str) -> Trajectories:
    """Trajectories of the record batches of pyarrow of each file.

    Columns go by the names of ``keys.NAMES``. Nested leaves are structs, or columns called "observations/camera".
    Where a row is an episode, ``dones`` (the layout for Hugging Face's Decision Transformer) is read like D4RL's
    terminals: an episode without a True was truncated; ``time_limit`` corrects exporters that mark cut episodes too.
    """
    name = options.name or name
    batches = [part for file in files if (part := [batch for batch in file if batch.num_rows])]
    tables = [require("pyarrow", "parquet").Table.from_batches(part) for part in batches]
    nonempty = [batch for part in batches for batch in part]
    if not nonempty:
        raise DataError(f"{name}: holds no rows; nothing can be learned from it")
    names = nonempty[0].schema.names
    columns = [key for key in names if not is_ignored(key)]
    for batch in nonempty:
        if sorted(batch.schema.names) != sorted(names):
            raise DataError(f"{name}: its files have different columns, {names} and {batch.schema.names}")
    if twice := [key for key in names if names.count(key) > 1]:
        raise DataError(f"{name}: two columns are called {twice[0]!r}; rename one")
    if STEPS in columns and _is_list(kind := nonempty[0].column(STEPS).type) and hasattr(kind.value_type, "fields"):
        return _trajectories_of_steps(tables, options, name)
    if not _is_row_an_episode(nonempty[0], columns):
        return trajectories_from_steps(table_columns(tables, columns, name), options, name, files=starts_of(tables))
    if options.columns is not None:
        raise ConfigError("columns does not apply to tables with an episode per row, whose columns have usual names")
    if options.split_on_discontinuity:
        raise ConfigError("split_on_discontinuity does not apply to tables with an episode per row, split already")
    kinds = {key: nonempty[0].schema.field(key).type for key in columns}
    single = [key for key, kind in kinds.items() if not (_is_list(kind) or hasattr(kind, "fields") or key in PER_STEP)]
    if single:
        warnings.warn(f"{name}: columns that nothing is read from: {single}", UserWarning, stacklevel=2)
    columns = [key for key in columns if key not in single]
    flags = NAMES["terminations"] + NAMES["truncations"]
    dones = next((key for key in ENDS if key in columns), None)
    renamed = {dones: "terminations"} if dones is not None and not any(key in columns for key in flags) else {}
    episodes = (
        nested({renamed.get(key, key): _member(batch.column(key), row, f"{name}: {key}") for key in columns})
        for batch in nonempty
        for row in range(batch.num_rows)
    )
    return trajectories_from_episodes(episodes, options, name, "table")


def table_columns(tables: Sequence[Any], columns: Iterable[str], name: str) -> dict[str, Any]:
    """Columns of tables as arrays [N, ...], or as the errors that they are refused with if they are used."""

    def read(key: str, where: str) -> Any:
        return column_values(_joined(tables, key, where), where)

    return {key: value_or_error(read, key, f"{name}: {key}") for key in columns}


def _joined(tables: Sequence[Any], key: str, where: str) -> Any:
    """A column of several tables, some of which may hold wider numbers."""
    parts = [table.select([key]) for table in tables]
    with damage(f"{where} has different types in some files", "make them alike"):
        joined = require("pyarrow", "parquet").concat_tables(parts, promote_options="permissive")
        return joined.column(0).combine_chunks()


def _trajectories_of_steps(tables: Sequence[Any], options: Options, name: str) -> Trajectories:
    """Trajectories of rows that are episodes: lists of steps, as RLDS has them."""
    pyarrow = require("pyarrow", "parquet")
    episodes = _joined(tables, STEPS, f"{name}: {STEPS}")
    lengths = require("pyarrow.compute", "parquet").list_value_length(episodes).to_numpy(zero_copy_only=False)
    steps = pyarrow.Table.from_struct_array(episodes.flatten())
    lengths = lengths[lengths > 0]
    starts = (np.cumsum(lengths) - lengths).astype(np.int64)
    return trajectories_from_steps(table_columns([steps], steps.column_names, name), options, name, starts=starts)


def _is_row_an_episode(batch: Any, columns: list[str]) -> bool:
    """Whether rewards, or where there are none actions, are lists of those of an episode."""

    def depth(kind: Any) -> int:
        return 1 + depth(kind.value_type) if _is_list(kind) else 0

    rewards = [depth(batch.column(key).type) for key in NAMES["rewards"] if key in columns]
    actions = [depth(batch.column(key).type) for key in NAMES["actions"] if key in columns]
    return any(rewards) if rewards else max(actions, default=0) > 1


def file_batches(files: list[Path]) -> Iterator[Any]:
    """The record batches of all files, checked against the bytes that they are stored in."""
    pyarrow = require("pyarrow", "parquet")
    for file in files:
        with damage(f"{file} is truncated or no table", "write or download it again"):
            if file.suffix.lower() != ".parquet":
                yield from _arrow(file, pyarrow)
                continue
            with require("pyarrow.parquet", "parquet").ParquetFile(file) as opened:
                _check_values(stated_values(file), file)
                yield from opened.iter_batches(_ROWS_AT_ONCE)


def _arrow(file: Path, pyarrow: Any) -> Iterator[Any]:
    """Batches of a stream, which ``datasets`` writes, or of a file with random access."""
    with pyarrow.memory_map(os.fspath(file)) as source:
        try:
            reader = pyarrow.ipc.open_stream(source)
        except pyarrow.ArrowInvalid:
            reader = pyarrow.ipc.open_file(source)
        batches = (
            reader if hasattr(reader, "read_next_batch") else map(reader.get_batch, range(reader.num_record_batches))
        )
        for batch in batches:
            batch.validate(full=True)
            _check_values(batch.num_rows, file)
            yield batch


def _check_values(values: int, file: Path) -> None:
    stored = file.stat().st_size
    if values > max(ALWAYS_READ, MAX_VALUES * stored):
        raise DataError(f"{file} states {values:,} values in {stored:,} bytes; it is damaged, or no recording")


def _described(file: Path) -> dict[str, Any]:
    description = read_json(file, DataError, "save the data set again with save_to_disk")
    if not isinstance(description, dict):
        raise DataError(f"{file} is no description of a data set; save it again with save_to_disk")
    return description


def _configuration(file: Path) -> str | None:
    """The name that a data set was loaded by ("hopper-medium-v2"), where its description tells."""
    name = _described(file).get("config_name") if file.is_file() else None
    return name if isinstance(name, str) and name != "default" else None


def _is_list(kind: Any) -> bool:
    types = require("pyarrow", "parquet").types
    return any(check(kind) for check in (types.is_list, types.is_large_list, types.is_fixed_size_list))


def _check_entries(array: Any, where: str) -> None:
    """Raise DataError for a missing entry that is no number: of numbers it is NaN, and found where it matters."""
    types = require("pyarrow", "parquet").types
    if array.null_count and not (types.is_floating(array.type) or types.is_integer(array.type)):
        raise DataError(f"{where}: row {array.is_null().index(True)} has no value; fill it in, or drop such rows")


def _member(array: Any, row: int, where: str) -> Any:
    """Values of one row of a column: arrays of T steps, nested like the structs of the column, or a single number."""
    _check_entries(array, where)
    if require("pyarrow", "parquet").types.is_struct(array.type):
        return _fields(array, lambda part, path: _member(part, row, path), where)
    return column_values(array.slice(row, 1).flatten(), where) if _is_list(array.type) else array[row].as_py()


def column_values(array: Any, where: str) -> Any:
    """Rows of a column as arrays, nested like its structs."""
    _check_entries(array, where)
    if require("pyarrow", "parquet").types.is_struct(array.type):
        return _fields(array, column_values, where)
    if not _is_list(array.type):
        return array.to_numpy(zero_copy_only=False)
    sizes = np.unique(require("pyarrow.compute", "parquet").list_value_length(array).to_numpy(zero_copy_only=False))
    if len(sizes) > 1:
        raise DataError(f"{where} holds rows of {sizes[0]} and of {sizes[-1]} numbers; all must have the same size")
    size = int(sizes[0]) if len(sizes) else 0
    rows = len(array)
    return map_leaves(lambda part: part.reshape(rows, size, *part.shape[1:]), column_values(array.flatten(), where))


def _fields(array: Any, read: Callable[[Any, str], Any], where: str) -> dict[str, Any]:
    return {
        field.name: read(part, f"{where}/{field.name}") for field, part in zip(array.type, array.flatten(), strict=True)
    }


# Footers of Parquet files: a struct of Thrift's compact protocol. pyarrow ends the process where it is asked about a
# column whose description is damaged.
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
