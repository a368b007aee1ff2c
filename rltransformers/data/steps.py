"""Logs of one row per step as trajectories: data frames, CSV, columns of any table.

Axis letter: N rows, one per step.
"""

import csv
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rltransformers.core.errors import DataError, require
from rltransformers.core.files import existing_file, replacing
from rltransformers.core.ranges import shown
from rltransformers.core.spaces import first_leaf, map_leaves, nested_leaves
from rltransformers.core.values import Array, Bools, flags
from rltransformers.data.checks import damage, leaf_name, prefixing
from rltransformers.data.columns import (
    RLDS_LAST,
    STARTS,
    array_of,
    choose_columns,
    column_names,
    component_names,
    first_missing,
    read_column,
    value_or_error,
)
from rltransformers.data.d4rl import trajectories_from_d4rl
from rltransformers.data.spaces import Options
from rltransformers.data.trajectories import Trajectories
from rltransformers.data.writer import column

Starts = npt.NDArray[np.int64]
"""Rows [E] where episodes begin."""
FLAGS = ("terminations", "truncations", "dones")


def is_frame(value: object) -> bool:
    """Whether this is a ``DataFrame`` of pandas."""
    module = sys.modules.get("pandas")  # who has such an object has imported it
    return module is not None and isinstance(value, module.DataFrame)


def csv_files(path: str | os.PathLike[str]) -> list[Path]:
    """The CSV file of a path, or those of a folder in their order."""
    folder = Path(path).expanduser()
    files = sorted(folder.glob("*.csv")) if folder.is_dir() else [existing_file(folder)]
    if not files:
        raise DataError(f"{folder} is a folder without CSV files; pass the one that holds them")
    return files


def read_csv(path: str | os.PathLike[str], options: Options) -> Trajectories:
    """Read a CSV file: a line of names, then a line per step; or a folder of them, as ``trajectories_from_frames``."""
    files = csv_files(path)
    frames = [_frame(file) for file in files]
    if Path(path).expanduser().is_dir():
        return trajectories_from_frames(frames, options, files[0].parent.name)
    return trajectories_from_frame(frames[0], options, files[0].name.partition(".")[0])


def _frame(file: Path) -> Any:
    pandas = require("pandas", "csv")
    way_out = "read it with pandas.read_csv(file, encoding=..., sep=...) and pass the DataFrame"
    with damage(f"{file} is no table of comma-separated values", way_out):
        as_text: dict[str, Any] = {"sep": "\0", "header": None, "dtype": str, "quoting": csv.QUOTE_NONE}
        lines = pandas.read_csv(file, keep_default_na=False, nrows=2, **as_text)[0]
        names = next(csv.reader(lines))
        separator = next((mark for mark in ";\t|" if len(names) == 1 and mark in names[0]), ",")
        layout: dict[str, Any] = {"sep": separator, "skipinitialspace": f"{separator} " in lines[0]}  # it is slower
        if [line.endswith(separator) for line in lines] == [False, True]:  # pandas would move the names by a column
            names = next(csv.reader([lines[0]], delimiter=separator, skipinitialspace=True))
            layout |= {"usecols": range(len(names)), "index_col": False}
        return pandas.read_csv(file, **layout)


def trajectories_from_frames(frames: Sequence[Any], options: Options, name: str = "frames") -> Trajectories:
    """Read DataFrames, each an episode where no column of theirs says another thing."""
    filled = [frame for frame in frames if len(frame)] or frames[:1]
    lacking: dict[Any, str] = {}
    for index, frame in enumerate(filled):
        if not is_frame(frame):
            raise DataError(f"{name}: item {index} is {shown(frame)}, the first a DataFrame; pass DataFrames alone")
        for key in set(frame.columns) ^ set(filled[0].columns):
            lacking[key] = f"{name}: {key!r} is a column of only one of the tables 0 and {index}; make them alike"
    columns = _columns(require("pandas", "csv").concat(filled), options.name or name)
    columns |= {_label(key): DataError(fault) for key, fault in lacking.items()}  # said where they are read
    starts = starts_of(filled)
    return trajectories_from_steps(columns, options, name, starts=starts, files=starts)


def starts_of(parts: Sequence[Any]) -> Starts:
    """The row where each part begins."""
    return np.cumsum([0, *map(len, parts[:-1])]).astype(np.int64)


def trajectories_from_frame(frame: Any, options: Options, name: str = "frame") -> Trajectories:
    """Read a DataFrame with a row per step; named levels of its index are columns, too."""
    return trajectories_from_steps(_columns(frame, options.name or name), options, name)


def _columns(frame: Any, name: str) -> dict[str, Any]:
    levels = [level for level in frame.index.names if level is not None and level not in frame.columns]
    if levels:
        frame = frame.reset_index(level=levels)
    labels = [_label(label) for label in frame.columns]
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise DataError(f"{name}: two columns are called {twice!r}; rename one")
    return {label: frame.iloc[:, index].to_numpy() for index, label in enumerate(labels)}


def _label(label: Any) -> str:
    """The name of a column, which may have levels."""
    return "_".join(str(part) for part in label if part != "") if isinstance(label, tuple) else str(label)


def trajectories_from_steps(
    table: Mapping[str, Any],
    options: Options,
    name: str,
    source: str = "table",
    known: Mapping[str, Any] | None = None,
    starts: Starts | None = None,
    files: Starts | None = None,
) -> Trajectories:
    """Trajectories of columns by name: arrays or lists of N values, or nested dicts of them.

    What a column holds is ``options.columns``, see ``choose_columns``. Rows that share a value of the episode column
    are an episode, in the order of the step column; without one an episode ends at flags, before a row that is marked
    as a first one (``STARTS``), or where the step number falls. A last step without a flag is truncated; ``dones`` are
    ends, and terminations unless other flags tell. A last row without an action (NaN, or in RLDS zeros) holds the
    observation after the last action.

    Args:
        known: what the format itself says about its columns.
        starts: rows where episodes begin, where the source says so; a column of episodes says it better.
        files: rows where files begin; an episode that goes on across one needs steps or flags that say so.
    """
    name = options.name or name
    arrays = {key: value_or_error(array_of, values, f"{name}: {key}") for key, values in table.items()}
    chosen = choose_columns(arrays, options.columns, known or {}, name)
    episode, step = (_plain(arrays, chosen.get(role), f"{name}: {role}") for role in ("episode", "step"))
    if len(step) > 1:
        raise DataError(f"{name}: step names {len(step)} columns, {chosen['step']}; name the one that orders the rows")
    step = [_counted(values) for values in step]
    order, first = _order(episode, step[0] if step else None, name)
    if episode or "episode" in (options.columns or {}):
        starts = first
    parts = {role: value for role, value in chosen.items() if role not in ("episode", "step")}
    roles = {role: read_column(arrays, value, order, f"{name}: {role}") for role, value in parts.items()}
    rows = len(first_leaf(roles["actions"]))
    if rows == 0:
        raise DataError(f"{name}: holds no rows; nothing can be learned from it")
    marks = _flags({role: roles.pop(role) for role in FLAGS if role in roles}, name)
    if files is not None and first is not None and not (step or any(values.any() for values in marks.values())):
        across = [file for file in files[1:] if file < np.append(first, rows)[1]]
        if across:
            raise DataError(
                f"{name}: the rows of the first episode lie in two files, the second from row {across[0]} on, and "
                f"nothing says whether they are one; number the episodes of all files apart, or name "
                f"columns={{'step': ...}}"
            )
    if starts is None and "dones" not in chosen:
        starts = _marked_starts(arrays, rows)
    if starts is None and not marks:
        if step:
            starts = np.flatnonzero(np.append(True, step[0][1:] <= step[0][:-1]))
        elif options.time_limit is None and not options.split_on_discontinuity:
            raise DataError(
                f"{name}: no column says where episodes end; present: {list(table)}; pass columns={{'episode': ...}}, "
                f"or 'terminations', 'truncations' or 'dones', or time_limit={rows} where all rows are one episode"
            )
    rlds = chosen.get("dones") == RLDS_LAST
    ends = np.logical_or.reduce([*marks.values(), np.arange(rows) == rows - 1])
    lasts = np.flatnonzero(ends) if starts is None else np.append(starts[1:], rows) - 1
    acts = _acts(roles["actions"], lasts, rlds)
    if not acts.all():
        kept = np.flatnonzero(acts)
        after = map_leaves(lambda leaf: leaf.at(kept + 1), roles["observations"])
        roles = {role: map_leaves(lambda leaf: leaf.at(kept), value) for role, value in roles.items()}
        roles["next_observations"], rows = after, len(kept)
        if not rlds:
            roles["actions"] = map_leaves(_classes, roles["actions"])
        marks = {role: (values | np.append(values[1:] & ~acts[1:], False))[kept] for role, values in marks.items()}
        starts = None if starts is None else np.unique(np.cumsum(np.append(0, acts))[starts])
    names = {role: component_names(arrays, chosen[role], f"{name}: {role}") for role in ("observations", "actions")}
    facts = {"columns": chosen, "names": {role: each for role, each in names.items() if each}}
    roles |= {"terminations": np.zeros(rows, bool)} | marks
    data = trajectories_from_d4rl(roles, options, name, source, starts)
    return replace(data, metadata=dict(data.metadata) | facts, verify=False)


def _marked_starts(arrays: Mapping[str, Any], rows: int) -> Starts | None:
    """The rows that a column marks as first ones of episodes, where there is such a column."""
    marks = [np.ravel(arrays[key]) for key in STARTS if key in arrays and np.size(arrays[key]) == rows]
    return np.flatnonzero(np.append(True, marks[0][1:] != 0)) if marks and marks[0].dtype.kind in "biuf" else None


def _acts(actions: Any, lasts: Starts, rlds: bool) -> Bools:
    """The rows [N] with an action: all, or where the last row of every episode has none, all but these."""
    last_actions = [np.asarray(leaf[lasts]).reshape(len(lasts), -1) for leaf in nested_leaves(actions).values()]
    acts: Bools = np.ones(len(first_leaf(actions)), bool)
    zeros = rlds and not any(rows.any() for rows in last_actions)
    if zeros or all(rows.dtype.kind == "f" and np.isnan(rows).all() for rows in last_actions):
        acts[lasts] = False
    return acts if acts.any() else np.ones_like(acts)


def _classes(actions: Any) -> Array:
    """Actions that stood beside missing ones, which made float64 of integers: whole numbers from 0 on are classes."""
    values = np.asarray(actions)
    whole = values.dtype == np.float64 and ((values >= 0) & (values < 2**53) & (values == np.trunc(values))).all()
    return values.astype(np.int64) if whole else values


def write_csv(data: Trajectories, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write a CSV file with a line per step, all or nothing; return its path.

    Columns are observations_0, observations_1, ..., "observations/arm_0" for the leaf "arm", the same of actions and,
    where last observations are known, of next_observations; then rewards where they are, terminations, truncations,
    episode and step. Numbers are read back exactly; spaces are not stored.

    Raises:
        DataError: when the file exists and ``overwrite`` is False, and for leaves of two or more axes, as pictures.
        MissingExtraError: without pandas.
    """
    target = Path(path)
    if target.exists() and not overwrite:
        raise DataError(f"{target} exists; pass overwrite=True or another path")
    pandas = require("pandas", "csv")
    episodes, steps = data.episode_of_steps, np.arange(data.steps)
    rows = steps + episodes
    kinds = [("observations", data.observations, rows), ("actions", data.actions, steps)]
    if data.final_observations:
        kinds.append(("next_observations", data.observations, rows + 1))
    columns: dict[str, Array] = {}
    for kind, leaves, chosen in kinds:
        for leaf, values in leaves.items():
            if values.ndim > 2:
                raise DataError(
                    f"{data.name}: {leaf_name(kind, leaf)} has shape {values.shape[1:]}, and a line holds single "
                    f"numbers; keep the data with Trajectories.save(folder)"
                )
            name = f"{kind}/{leaf}" if leaf else kind
            if values.ndim == 1:
                columns[name] = values[chosen]
            else:
                columns |= {f"{name}_{index}": values[chosen, index] for index in range(values.shape[1])}
    if data.has_rewards:
        columns["rewards"] = data.rewards
    columns |= {"terminations": data.terminations, "truncations": data.truncations}
    columns |= {"episode": episodes, "step": steps - data.offsets[episodes]}
    with replacing(target) as temporary:
        pandas.DataFrame(columns).to_csv(temporary, index=False)
    return target


def _plain(table: Mapping[str, Any], value: Any, where: str) -> list[Array]:
    """The columns of one value per row that ``columns`` names, without missing entries."""
    columns = [] if value is None else [table[name] for name in column_names(table, value, where)]
    for values in columns:
        if not isinstance(values, np.ndarray) or values.ndim != 1:
            raise DataError(f"{where}: one value per row is needed")
        if (missing := first_missing(values)) is not None:
            raise DataError(f"{where}: row {missing} has no value; fill it in or drop the row")
    return columns


def _counted(step: Array) -> Array:
    """Steps as numbers in their order: of whole numbers as text themselves, of dates and other text their places."""
    if step.dtype.kind != "O":
        return step
    if all(isinstance(value, str) and value.strip().isdecimal() for value in step):
        return np.array([int(value) for value in step])
    return np.unique(step, return_inverse=True)[1]


def _order(episode: Sequence[Array], step: Array | None, name: str) -> tuple[Array | None, Array | None]:
    """The order of rows (None: as they are), and in it the rows [E] where episodes begin (None: nobody says)."""
    if not episode:
        return None, None
    rows = len(episode[0])
    changes = np.ones(rows, bool)
    changes[1:] = np.any([values[1:] != values[:-1] for values in episode], axis=0)
    starts = np.flatnonzero(changes)
    keys = list(zip(*(values[starts].tolist() for values in episode), strict=True))
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    of_rows = np.repeat([numbers[key] for key in keys], np.diff(np.append(starts, rows)))
    together = len(numbers) == len(keys)
    if step is None and not together:
        apart = next(key for key in numbers if keys.count(key) > 1)
        raise DataError(
            f"{name}: the rows of episode {_shown(apart)} lie apart, and no column says their order; number the "
            f"episodes of several files apart, name columns={{'step': ...}}, or sort the rows by episode"
        )
    if step is None or (together and not ((of_rows[1:] == of_rows[:-1]) & ~(step[1:] > step[:-1])).any()):
        return None, starts
    order = np.lexsort((step, of_rows))
    of_rows, step = of_rows[order], step[order]
    starts = np.searchsorted(of_rows, np.arange(len(numbers)))
    if (twice := np.flatnonzero((of_rows[1:] == of_rows[:-1]) & (step[1:] == step[:-1]))).size:
        key = list(numbers)[of_rows[twice[0]]]
        raise DataError(
            f"{name}: two rows are step {step[twice[0]]} of episode {_shown(key)}; number the episodes of several "
            f"files apart, or pass columns={{'step': None}} if that column is no step number"
        )
    return order, starts


def _shown(key: tuple[Any, ...]) -> str:
    return shown(key[0] if len(key) == 1 else key)


def _flags(given: Mapping[str, Any], name: str) -> dict[str, Bools]:
    """Terminations and truncations [N], as far as columns tell: dones that are no termination truncate."""
    marks: dict[str, Bools] = {}
    for role, values in given.items():
        with prefixing(f"{name}: {role}"):
            marks[role] = column(flags(values))
    dones = marks.pop("dones", None)
    if dones is None:
        return marks
    if "terminations" in marks:
        marks["truncations"] = marks.get("truncations", False) | (dones & ~marks["terminations"])
    else:
        marks["terminations"] = dones & ~marks.get("truncations", np.zeros(len(dones), bool))
    return marks
