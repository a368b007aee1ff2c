"""Which column of a table holds what: as the option ``columns`` says, else guessed by usual names.

Axis letter: N rows, one per step.
"""

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rltransformers.core.errors import ConfigError, DataError, did_you_mean, one_line
from rltransformers.core.ranges import shown
from rltransformers.core.spaces import map_leaves, nest_paths
from rltransformers.core.values import Array
from rltransformers.data.keys import ENDS, NAMES, is_ignored

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
USUAL: dict[str, tuple[str, ...]] = {
    "observations": (*NAMES["observations"], "state", "states"),
    "actions": NAMES["actions"],
    "rewards": (*NAMES["rewards"], "next.reward"),
    "terminations": (*NAMES["terminations"], "next.terminated"),
    "truncations": (*NAMES["truncations"], "timeout", "next.truncated"),
    "dones": (*ENDS, "next.done"),
    "next_observations": (*NAMES["next_observations"], "next_state", "next_states"),
    "episode": _EPISODE,
    "step": _STEP,
}
"""What a column may hold → its usual names, the likeliest first."""
NESTED = ("observations", "actions", "next_observations")
_NUMBERED = re.compile(r"(.*?)(_|\.|)(\[?)(\d+)(\]?)")
_WITHOUT_A_WORD = (*_STEP, "index", "Unnamed: 0")  # left out; the last is how pandas calls the numbers of rows


class Rows:
    """Columns [N, ...] as rows in an order of their own, several side by side; made slice by slice when read."""

    def __init__(self, columns: Sequence[Array], single: bool, order: npt.NDArray[np.int64] | None) -> None:
        self.columns, self.single, self.order = columns, single, order
        self.dtype = np.result_type(*columns)
        self.shape = columns[0].shape if single else (len(columns[0]), len(columns))
        self.ndim = len(self.shape)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: Any) -> Array:
        chosen = rows if self.order is None else self.order[rows]
        if self.single:
            return np.asarray(self.columns[0][chosen])
        return np.stack([column[chosen] for column in self.columns], axis=-1)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self[:], dtype)


def array_of(values: Any, where: str) -> Any:
    """The array [N, ...] of the N values of a column, nested like they are; text and missing ones stay objects."""
    if isinstance(values, Mapping):
        return {key: array_of(part, f"{where}/{key}") for key, part in values.items()}
    if isinstance(values, np.ndarray) and values.dtype.kind != "O":
        return values
    first = values[0] if len(values) else None
    try:
        if isinstance(first, Mapping):
            return {str(key): array_of([value[key] for value in values], f"{where}/{key}") for key in first}
        if isinstance(first, tuple):
            parts = zip(*values, strict=True)
            return tuple(array_of(list(part), f"{where}/{index}") for index, part in enumerate(parts))
        if isinstance(first, str):
            return np.asarray(values, object)
        if isinstance(first, list | np.ndarray):
            return np.stack([np.asarray(value) for value in values])
        return np.asarray(list(values))
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise DataError(f"{where}: its rows are not of one shape ({one_line(error)}); pad or drop them") from error


def choose_columns(
    table: Mapping[str, Any], columns: Mapping[str, Any] | None, known: Mapping[str, Any], name: str
) -> dict[str, Any]:
    """What columns of a table hold: as ``columns`` says, then as the format does (``known``), the rest guessed.

    Warns of a guess, as the option that says the same, and of columns that are left out.

    Raises:
        ConfigError: for columns that are not there, and what none can hold.
        DataError: without observations or actions.
    """
    given = dict(columns or {})
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
    left = [key for key in table if key not in used and key not in _WITHOUT_A_WORD and not is_ignored(key)]
    if told or (left and columns is None and not known):
        guess = f"columns={chosen!r} is a guess; write it down where it is right" if told else ""
        rest = f"columns that nothing is read from: {left}" if left else ""
        dones = set(chosen) & {"terminations", "truncations", "dones"} == {"dones"} and told
        ends = "'dones' count as terminations; pass time_limit=... if limits set them, too" if dones else ""
        warnings.warn(f"{name}: " + "; ".join(filter(None, (guess, ends, rest))), UserWarning, stacklevel=2)
    return chosen


def read_column(table: Mapping[str, Any], value: Any, order: npt.NDArray[np.int64] | None, where: str) -> Any:
    """The rows of what ``columns`` names: ``Rows``, in nested dicts where they have leaves."""
    if isinstance(value, Mapping):
        return nest_paths({str(path): read_column(table, part, order, where) for path, part in value.items()})
    names = column_names(table, value, where)
    if isinstance(value, str) and value in table:
        return map_leaves(lambda column: Rows([column], True, order), table[value])
    for name in names:
        if not _is_number(table[name]):
            raise DataError(f"{where}: {name!r} has no single number per row; give such a column a leaf of its own")
    return Rows([table[name] for name in names], False, order)


def _used(table: Mapping[str, Any], value: Any, where: str) -> set[str]:
    parts = value.values() if isinstance(value, Mapping) else [value]
    return {name for part in parts for name in column_names(table, part, where)}


def column_names(table: Mapping[str, Any], value: Any, where: str) -> list[str]:
    """The columns that a name, a list of names, or ``obs_*`` for obs_0, obs_1, ... stands for."""
    if isinstance(value, str) and "*" in value and value not in table:
        pattern = re.compile(re.escape(value).replace(r"\*", r"(\d+)", 1))
        found = sorted((int(match[1]), key) for key in table if (match := pattern.fullmatch(key)))
        if not found:
            raise ConfigError(f"{where} is {value!r}, which no column is called like; present: {list(table)}")
        if (gap := _gap([number for number, _ in found])) is not None:
            raise ConfigError(f"{where} is {value!r}, of which number {gap} is missing; list the columns instead")
        return [key for _, key in found]
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not listed or not all(isinstance(each, str) for each in listed):
        raise ConfigError(
            f"{where} must be a name of a column, a list of names or a dict of leaves, got {shown(value)}"
        )
    for each in listed:
        if each not in table:
            raise ConfigError(f"{where} names {each!r}, which is no column; {did_you_mean(each, table)}")
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
    for name in USUAL[role]:
        if name in free and (role != "step" or _is_number(free[name])):
            return name, name in own
        if role not in NESTED:
            continue
        if (numbered := _numbered(free).get(name)) is not None:
            return numbered, False
        for separator in "/.":
            prefix = name + separator
            leaves = {key.removeprefix(prefix): column for key, column in free.items() if key.startswith(prefix)}
            if leaves:
                return _leaves(leaves, prefix), separator == "/" and name in own
    return None, False


def _leaves(leaves: Mapping[str, Any], prefix: str) -> dict[str, str]:
    """Leaf → column, or all numbered columns of one name."""
    numbered = {stem: pattern for stem, pattern in _numbered(leaves).items() if stem}
    patterns = [re.compile(re.escape(pattern).replace(r"\*", r"\d+", 1)) for pattern in numbered.values()]
    single = [leaf for leaf in leaves if not any(pattern.fullmatch(leaf) for pattern in patterns)]
    names = {leaf: leaf for leaf in single} | numbered
    return {leaf.replace(".", "/"): prefix + name for leaf, name in names.items()}


def _numbered(table: Mapping[str, Any]) -> dict[str, str]:
    """Names whose numbers, from 0 or 1 on without a gap, are columns of single numbers → as "obs_*"."""
    numbers: dict[tuple[str, str], list[int]] = {}
    for key, column in table.items():
        if (match := _NUMBERED.fullmatch(key)) and _is_number(column):
            stem, separator, opening, number, closing = match.groups()
            numbers.setdefault((stem, f"{stem}{separator}{opening}*{closing}"), []).append(int(number))
    return {stem: pattern for (stem, pattern), found in numbers.items() if _gap(sorted(found)) is None}
