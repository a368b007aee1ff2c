"""Which column of a table holds what: as the option ``columns`` says, else guessed by usual names.

Axis letter: N rows, one per step.
"""

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from rltransformers.core.errors import ConfigError, DataError, did_you_mean, one_line
from rltransformers.core.ranges import shown
from rltransformers.core.spaces import map_leaves, nest_paths, nested_leaves
from rltransformers.core.values import Array, as_array
from rltransformers.data.keys import ENDS, NAMES, is_ignored
from rltransformers.data.spaces import Sliced

_EPISODE = (
    "episode",
    "episode_id",
    "episode_index",
    "episode_number",
    "ep",
    "ep_id",
    "traj_id",
    "trajectory_id",
    "traj",
)
_STEP = ("timestep", "time_step", "step", "step_index", "frame_index", "t")
RLDS_LAST = "is_last"
STEPS = "steps"
"""Where RLDS has the steps of an episode."""
STARTS = ("episode_starts", "episode_start", "is_first")
"""Names of columns that are 1 in the first row of an episode."""
USUAL: dict[str, tuple[str, ...]] = {
    "observations": (*NAMES["observations"], "state", "states"),
    "actions": NAMES["actions"],
    "rewards": (*NAMES["rewards"], "next.reward"),
    "terminations": (*NAMES["terminations"], "next.terminated", "is_terminal"),
    "truncations": (*NAMES["truncations"], "timeout", "next.truncated"),
    "dones": (*ENDS, "next.done", RLDS_LAST),
    "next_observations": (*NAMES["next_observations"], "next_state", "next_states"),
    "episode": _EPISODE,
    "step": _STEP,
}
"""What a column may hold → its usual names, the likeliest first."""
NESTED = ("observations", "actions", "next_observations")
_NUMBERED = re.compile(r"(.*?)(_|\.| |)(\[?)(\d+)(\]?)")
_WITHOUT_A_WORD = (*_STEP, *STARTS, "index", "Unnamed: 0", "discount")  # left out; pandas calls row numbers Unnamed


class Rows(Sliced):
    """Columns [N, ...] as rows in an order of their own, several side by side."""

    def __init__(self, columns: Sequence[Array], single: bool, order: npt.NDArray[np.int64] | None) -> None:
        self.columns, self.single, self.order = columns, single, order
        self.dtype = np.result_type(*columns)
        rows = len(columns[0] if order is None else order)
        self.shape = (rows, *columns[0].shape[1:]) if single else (rows, len(columns))

    def __getitem__(self, rows: Any) -> Array:
        chosen = rows if self.order is None else self.order[rows]
        if self.single:
            return np.asarray(self.columns[0][chosen])
        return np.stack([column[chosen] for column in self.columns], axis=-1)

    def at(self, rows: npt.NDArray[np.int64]) -> "Rows":
        """Only these rows."""
        return Rows(self.columns, self.single, rows if self.order is None else self.order[rows])


def array_of(values: Any, where: str) -> Any:
    """The array [N, ...] of the N values of a column, nested like they are; text and others stay objects.

    None beside numbers is NaN, as it is where pandas reads a file.
    """
    if isinstance(values, DataError):  # of a source that could not read it
        raise values
    if isinstance(values, Mapping):
        return {key: array_of(part, f"{where}/{key}") for key, part in values.items()}
    if hasattr(values, "__array__"):
        values = as_array(values)
        if values.dtype.kind != "O" and values.ndim:
            return values
    if isinstance(values, str) or not hasattr(values, "__len__") or getattr(values, "ndim", 1) == 0:
        raise DataError(f"{where} is {shown(values)}; a column has a value for every row")
    values = list(values)
    first = next((value for value in values if value is not None), None)
    try:
        if isinstance(first, Mapping):
            return {str(key): array_of([value[key] for value in values], f"{where}/{key}") for key in first}
        if isinstance(first, tuple):
            parts = zip(*values, strict=True)
            return tuple(array_of(list(part), f"{where}/{index}") for index, part in enumerate(parts))
        if isinstance(first, str) and first.startswith("["):  # lists that passed through a CSV file
            return np.stack([_listed(value) for value in values])
        if isinstance(first, list | np.ndarray | Tensor):
            missing = np.full(np.shape(first), np.nan)
            return np.stack([missing if value is None else as_array(value) for value in values])
        if isinstance(first, Decimal) or (first is not None and all(map(_is_single, values))):
            return np.array(values, np.float64 if None in values or isinstance(first, Decimal) else None)
        array = np.asarray(values)
        return array if array.dtype.kind not in "OUS" else np.fromiter(values, object, len(values))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError) as error:
        if (row := first_missing(values)) is not None:
            raise DataError(f"{where}: row {row} has no value; fill it in, or drop such rows") from error
        raise DataError(
            f"{where}: its rows are not of one shape ({one_line(error)}); pad or drop them, or where a row is an "
            f"episode pass a list of dicts, frame.to_dict('records')"
        ) from error


def _is_single(value: Any) -> bool:
    """Whether this is a number, or none."""
    return value is None or (isinstance(value, int | float | np.number) and not isinstance(value, bool))


def _listed(text: str) -> Array:
    """The numbers of a list that passed through a file as text: "[1, 2]", or as NumPy writes it "[1. 2.]"."""
    words = text.strip("[]").replace(",", " ").split()
    return np.array([int(word) if word.isdecimal() else float(word) for word in words])


def first_missing(values: Any) -> int | None:
    """The first row [N, ...] without a value, if there is one."""
    if isinstance(values, np.ndarray) and values.dtype.kind != "O":
        rows = np.flatnonzero(values != values)
        return int(rows[0]) if rows.size else None
    return next((row for row, value in enumerate(values) if _is_missing(value)), None)


def _is_missing(value: Any) -> bool:
    """Whether a value of a column is None, NaN, NaT or pandas.NA."""
    try:
        return value is None or bool(value != value)
    except TypeError:  # of pandas.NA nothing is known, not even this
        return True
    except (ValueError, RuntimeError):  # several numbers
        return False


def value_or_error(read: Callable[..., Any], *arguments: Any) -> Any:
    """What ``read`` returns, or the DataError that it raises: columns that nothing is read from may hold anything."""
    try:
        return read(*arguments)
    except DataError as error:
        return error


def choose_columns(
    table: Mapping[str, Any], columns: Mapping[str, Any] | None, known: Mapping[str, Any], name: str
) -> dict[str, Any]:
    """What columns of a table hold: as ``columns`` says, then as the format does (``known``), the rest guessed.

    Values of the table are arrays, nested dicts of them, or errors, which are raised where such a column is used.

    Warns of a guess, as the option that says the same, and of columns that are left out.

    Raises:
        ConfigError: for columns that are not there, and what none can hold.
        DataError: without observations or actions, and for columns of different lengths.
    """
    given = {role: _as_names(value) for role, value in (columns or {}).items()}
    for role in given:
        if role not in USUAL:
            raise ConfigError(f"columns names {role!r}; {did_you_mean(role, USUAL)}")
    chosen = {role: value for role, value in {**known, **given}.items() if value is not None}
    used = {key for role, value in chosen.items() for key in _used(table, value, f"columns[{role!r}]")}
    told = False
    for role in USUAL:
        if role in given or role in chosen:
            continue
        value, usual = _guess(table, role, used)
        if value is not None:
            value = _in_order_of(chosen.get("observations"), value) if role == "next_observations" else value
            chosen[role] = value
            used |= _used(table, value, role)
            told |= not usual
    for role in ("observations", "actions"):
        if role not in chosen:
            raise DataError(
                f"{name}: no column is called like {role}; present: {list(table)}; pass columns={{{role!r}: ...}}, "
                f"a name, a list of names, 'name_*' for numbered ones, or a dict of leaves"
            )
    chosen = {role: chosen[role] for role in USUAL if role in chosen}
    _check_lengths({key: table[key] for key in table if key in used}, name)
    left = [key for key in table if key not in used and key not in _WITHOUT_A_WORD and not is_ignored(key)]
    if told or (left and columns is None and not known):
        guess = f"columns={chosen!r} is a guess; write it down where it is right" if told else ""
        rest = f"columns that nothing is read from: {left}" if left else ""
        dones = set(chosen) & {"terminations", "truncations", "dones"} == {"dones"} and told
        ends = "'dones' count as terminations; pass time_limit=... if limits set them, too" if dones else ""
        warnings.warn(f"{name}: " + "; ".join(filter(None, (guess, ends, rest))), UserWarning, stacklevel=2)
    return chosen


def _check_lengths(columns: Mapping[str, Any], name: str) -> None:
    lengths = {
        f"{key}/{path}".rstrip("/"): len(leaf)
        for key, column in columns.items()
        for path, leaf in nested_leaves(column).items()
    }
    (first, rows), *others = lengths.items()
    for key, length in others:
        if length != rows:
            raise DataError(f"{name}: {key!r} has {length:,} rows, {first!r} {rows:,}; a column has one per step")


def _as_names(value: Any) -> Any:
    """Names as texts and lists of them: numbers are the names of frames without any, an index may be a list."""
    if isinstance(value, Mapping):
        return {str(path): _as_names(part) for path, part in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return list(map(str, value))
    return str(value) if isinstance(value, int | np.integer) else value


def read_column(table: Mapping[str, Any], value: Any, order: npt.NDArray[np.int64] | None, where: str) -> Any:
    """The rows of what ``columns`` names: ``Rows``, in nested dicts where they have leaves."""
    if isinstance(value, Mapping):
        return nest_paths({str(path): read_column(table, part, order, where) for path, part in value.items()})
    names = column_names(table, value, where)
    for name in names:
        if (fault := _fault(table[name], name)) is not None:
            raise DataError(f"{where}: {name!r} holds {fault}")
    if isinstance(value, str) and value in table:
        return map_leaves(lambda column: Rows([column], True, order), table[value])
    for name in names:
        if not _is_number(table[name]):
            raise DataError(f"{where}: {name!r} has no single number per row; give such a column a leaf of its own")
    return Rows([table[name] for name in names], False, order)


def _fault(column: Any, name: str) -> str | None:
    """What a column of single values holds in place of numbers, and the line that makes numbers of it."""
    if not isinstance(column, np.ndarray) or column.ndim != 1 or column.dtype.kind in "biuf":
        return None
    new, old = f"frame[{name!r}] =", f"frame[{name!r}]"
    if column.dtype.kind in "mM":
        zero = " - " + old + ".min()" if column.dtype.kind == "M" else ""
        return f"times; write seconds: {new} ({old}{zero}).dt.total_seconds()"
    if (missing := first_missing(column)) is not None:
        return f"no value in row {missing}; fill it in, or drop such rows"
    if column.dtype.kind != "O" or not all(isinstance(value, str) for value in column):
        return f"{column.dtype}, no numbers; convert or drop it"
    if set(column) <= {"True", "False"}:
        return f"text, such as {shown(column[0])}; make flags of it: {new} {old} == 'True'"
    of_numbers = [re.fullmatch(r"[-+\d.,eE]*\d[-+\d.,eE]*", value.strip()) is not None for value in column]
    if not all(of_numbers):
        row = of_numbers.index(False)
        text = f"text, such as {shown(column[row])} in row {row}"
        if any(of_numbers):
            return f"{text}, beside numbers; replace or drop such rows"
        return f"{text}; number the classes: {new} {old}.astype('category').cat.codes"
    comma = next((value for value in column if "," in value), None)
    text = f"text, such as {shown(column[0] if comma is None else comma)}; make numbers of it: {new} pandas.to_numeric"
    if comma is None:
        return f"{text}({old})"
    return f"{text}({old}.str.replace(',', '.')), or with '' in place of '.' if the comma parts thousands"


def _used(table: Mapping[str, Any], value: Any, where: str) -> set[str]:
    parts = value.values() if isinstance(value, Mapping) else [value]
    return {name for part in parts for name in column_names(table, part, where)}


def column_names(table: Mapping[str, Any], value: Any, where: str) -> list[str]:
    """The columns that a name, a list of names, or ``obs_*`` for obs_0, obs_1, ... stands for."""
    if isinstance(value, str) and "*" in value and value not in table:
        pattern = re.compile(re.escape(value).replace(r"\*", r"(\d+)", 1))
        numbered = sorted((int(match[1]), key) for key in table if (match := pattern.fullmatch(key)))
        if not numbered:
            raise ConfigError(f"{where} is {value!r}, which no column is called like; present: {list(table)}")
        if (gap := _gap([number for number, _ in numbered])) is not None:
            raise ConfigError(f"{where} is {value!r}, of which number {gap} is missing; list the columns instead")
        value = [key for _, key in numbered]
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not listed or not all(isinstance(each, str) for each in listed):
        raise ConfigError(
            f"{where} must be a name of a column, a list of names or a dict of leaves, got {shown(value)}"
        )
    for each in listed:
        if each not in table:
            raise ConfigError(f"{where} names {each!r}, which is no column; {did_you_mean(each, table)}")
        if isinstance(table[each], DataError):
            raise table[each]
    return list(listed)


def component_names(table: Mapping[str, Any], value: Any, where: str) -> dict[str, list[str]]:
    """Leaf path → the columns of its components, for leaves of single numbers; others have no entry."""
    parts = value if isinstance(value, Mapping) else {"": value}
    names = {str(path): column_names(table, part, where) for path, part in parts.items()}
    return {path: columns for path, columns in names.items() if all(_is_number(table[key]) for key in columns)}


def _gap(numbers: Sequence[int]) -> int | None:
    """The first whole number, from 0 or 1 on, that is not among sorted ones."""
    first = min(numbers[0], 1)
    return next((number for number, each in enumerate(numbers, first) if number != each), None)


def _is_number(column: Any) -> bool:
    return isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind in "biuf"


def _guess(table: Mapping[str, Any], role: str, used: set[str]) -> tuple[Any, bool]:
    """What a role is read from, and whether this is the library's own layout; None where no name is usual."""
    free = {key: column for key, column in table.items() if key not in used}
    own = NAMES.get(role, ())
    keys = {_plain_name(key): key for key in reversed(free)} | {key: key for key in free}
    _check_single([keys[name] for name in own if name in keys], role)
    numbered = _numbered(free) if role in NESTED else {}
    for name in USUAL[role]:
        if name in keys and (role != "step" or _is_number(free[keys[name]])):
            return keys[name], keys[name] in own
        if patterns := [pattern for pattern, stem in numbered.items() if _plain_name(stem) == name]:
            _check_single(patterns, role)
            return patterns[0], False
        for separator in "/." if role in NESTED else "":
            if (prefix := _prefix(free, name, separator)) is not None:
                leaves = {key.removeprefix(prefix): column for key, column in free.items() if key.startswith(prefix)}
                return _leaves(leaves, prefix), separator == "/" and name in own
    for name in USUAL[role] if role in NESTED else ():
        if (prefix := _prefix(free, name, "_")) is not None:
            components = [key for key in free if key.startswith(prefix) and _is_number(free[key])]
            if components:
                return components, False
    return None, False


def _in_order_of(columns: Any, others: Any) -> Any:
    """Lists of columns "next_obs_b", "next_obs_a" in the order of "obs_a", "obs_b"; what has other endings stays."""
    if not isinstance(columns, list) or not isinstance(others, list):
        return others
    endings, other_endings = _endings(columns), _endings(others)
    if sorted(endings) != sorted(other_endings):
        return others
    return [others[other_endings.index(ending)] for ending in endings]


def _endings(names: list[str]) -> list[str]:
    """What names have behind their common beginning, whole words of it."""
    places = [0, *(place for place, mark in enumerate(names[0], 1) if mark in "_ ")]
    end = max(place for place in places if all(name.startswith(names[0][:place]) for name in names))
    return [name[end:] for name in names]


def _check_single(names: Sequence[str], role: str) -> None:
    if len(names) > 1:
        raise DataError(f"both {names[0]!r} and {names[1]!r} may be {role}; say which: columns={{{role!r}: ...}}")


def _plain_name(key: str) -> str:
    """A name as ``USUAL`` writes it: of "EpisodeId" and "Episode ID" episode_id."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key.strip()).replace(" ", "_").lower()


def _prefix(table: Mapping[str, Any], name: str, separator: str) -> str | None:
    """How the first column whose name begins like that, up to a separator, writes its beginning."""
    marks = separator.replace("_", "_ ")
    beginnings = (key[: place + 1] for key in table for place, mark in enumerate(key) if mark in marks)
    return next((beginning for beginning in beginnings if _plain_name(beginning[:-1]) == name), None)


def _leaves(leaves: Mapping[str, Any], prefix: str) -> dict[str, str]:
    """Leaf → column, or all numbered columns of one name."""
    numbered = {stem: pattern for pattern, stem in _numbered(leaves).items() if stem}
    patterns = [re.compile(re.escape(pattern).replace(r"\*", r"\d+", 1)) for pattern in numbered.values()]
    single = [leaf for leaf in leaves if not any(pattern.fullmatch(leaf) for pattern in patterns)]
    names = {leaf: leaf for leaf in single} | numbered
    return {leaf.replace(".", "/"): prefix + name for leaf, name in names.items()}


def _numbered(table: Mapping[str, Any]) -> dict[str, str]:
    """Names whose numbers, from 0 or 1 on without a gap, are columns of single values: "obs_*" → "obs"."""
    numbers: dict[tuple[str, str], list[int]] = {}
    for key, column in table.items():
        single = isinstance(column, DataError) or getattr(column, "ndim", None) == 1  # errors are raised later
        if single and (match := _NUMBERED.fullmatch(key)):
            stem, separator, opening, number, closing = match.groups()
            numbers.setdefault((stem, f"{stem}{separator}{opening}*{closing}"), []).append(int(number))
    return {pattern: stem for (stem, pattern), found in numbers.items() if _gap(sorted(found)) is None}
